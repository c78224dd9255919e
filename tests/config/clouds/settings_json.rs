//! Our settings of a cloud in JSON, in the format that tests/python/clouds.py has for those of openstacksdk.

use openstack_clouds::{
    Auth, CloudSettings, Credential, Domain, FloatingIps, Identity, IdentityApi, Interface, NetworkRole, Scope,
    Service, User, Verify,
};
use serde_json::{Value, json};

pub fn json_of(settings: &CloudSettings) -> Value {
    let services = &settings.services;
    let certificate = settings.certificate.as_ref().map(|certificate| match &certificate.key {
        Some(key) => json!([certificate.certificate, key]),
        None => json!(certificate.certificate),
    });
    json!({
        "cloud": settings.cloud,
        "region": settings.region.clone().unwrap_or_default(),
        "login": {"auth_url": settings.identity.auth_url, "body": login(&settings.identity)},
        "verify": match &settings.verify {
            Verify::System => json!(true),
            Verify::Bundle(path) => json!(path),
            Verify::Off => json!(false),
        },
        "certificate": certificate,
        "api_timeout": settings.api_timeout_s,
        "image_format": settings.image_format,
        "image_api_use_tasks": settings.image_api_use_tasks,
        "image_properties": settings.image_properties,
        "floating_ips": match settings.floating_ips {
            FloatingIps::Neutron => "neutron",
            FloatingIps::Nova => "nova",
            FloatingIps::None => "none",
        },
        "requires_floating_ip": settings.requires_floating_ip,
        "networks": settings.networks.iter().map(network).collect::<Vec<_>>(),
        "use_external_network": settings.use_external_network,
        "use_internal_network": settings.use_internal_network,
        "private": settings.private,
        "force_ipv4": settings.force_ipv4,
        "statsd": settings.statsd.as_ref().map(|statsd| json!({
            "host": statsd.host, "port": statsd.port, "prefix": statsd.prefix,
        })),
        "services": {
            "compute": service(&services.compute),
            "network": service(&services.network),
            "image": service(&services.image),
            "block-storage": service(&services.block_storage),
            "identity": service(&services.identity),
        },
    })
}

fn network(network: &NetworkRole) -> Value {
    json!({
        "name": network.name,
        "routes_externally": network.routes_externally,
        "routes_ipv4_externally": network.routes_ipv4_externally,
        "routes_ipv6_externally": network.routes_ipv6_externally,
        "nat_source": network.nat_source,
        "nat_destination": network.nat_destination,
        "default_interface": network.default_interface,
    })
}

fn service(service: &Service) -> Value {
    let interfaces = service.interfaces.iter().map(|interface| match interface {
        Interface::Public => "public",
        Interface::Internal => "internal",
        Interface::Admin => "admin",
    });
    json!({
        "enabled": service.is_enabled,
        "endpoint": service.endpoint,
        "region": service.region.clone().unwrap_or_default(),
        "interfaces": interfaces.collect::<Vec<_>>(),
        "api_version": service.api_version,
        "microversion": service.microversion,
        "service_type": service.service_type,
        "service_name": service.service_name,
    })
}

/// The body of the token request: in version 2 of the identity API if the auth type names it, else in version 3.
fn login(identity: &Identity) -> Value {
    if let (
        IdentityApi::V2,
        Auth::Password { user: User::Name { name, .. }, password },
        Scope::ProjectName { name: of, .. },
    ) = (identity.api, &identity.auth, &identity.scope)
    {
        let password = json!({"username": name, "password": password.expose()});
        return json!({"auth": {"passwordCredentials": password, "tenantName": of}});
    }
    let (method, proof) = match &identity.auth {
        Auth::Password { user, password } => {
            let mut user = user_json(user);
            user["password"] = json!(password.expose());
            ("password", json!({"user": user}))
        }
        Auth::Token { token } => ("token", json!({"id": token.expose()})),
        Auth::ApplicationCredential { credential, secret } => {
            let mut proof = match credential {
                Credential::Id(id) => json!({"id": id}),
                Credential::Name { name, user } => json!({"name": name, "user": user_json(user)}),
            };
            proof["secret"] = json!(secret.expose());
            ("application_credential", proof)
        }
    };
    let mut body = json!({"auth": {"identity": {"methods": [method]}}});
    body["auth"]["identity"][method] = proof;
    let scope = match &identity.scope {
        Scope::Default => return body,
        Scope::ProjectId(id) => json!({"project": {"id": id}}),
        Scope::ProjectName { name, domain } => json!({"project": with_domain(json!({"name": name}), domain)}),
        Scope::Domain(domain) => json!({"domain": domain_json(domain)}),
        Scope::System => json!({"system": {"all": true}}),
        Scope::Trust(id) => json!({"OS-TRUST:trust": {"id": id}}),
    };
    body["auth"]["scope"] = scope;
    body
}

fn user_json(user: &User) -> Value {
    match user {
        User::Id(id) => json!({"id": id}),
        User::Name { name, domain } => with_domain(json!({"name": name}), domain),
    }
}

fn with_domain(mut named: Value, domain: &Option<Domain>) -> Value {
    if let Some(domain) = domain {
        named["domain"] = domain_json(domain);
    }
    named
}

fn domain_json(domain: &Domain) -> Value {
    match domain {
        Domain::Id(id) => json!({"id": id}),
        Domain::Name(name) => json!({"name": name}),
    }
}

//! DescribeKeyPairs, CreateKeyPair, ImportKeyPair, DeleteKeyPair.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::api::pages::not_found;
use crate::api::xml::Xml;
use crate::region::objects::KeyPair;
use crate::region::region::Ec2;
use crate::region::tags;
use crate::server::form::Form;
use crate::server::response::{ApiError, ApiResult};

impl Ec2<'_> {
    pub fn describe_key_pairs(&mut self, form: &Form, xml: &mut Xml) -> ApiResult<()> {
        let names = form.list("KeyName");
        let pairs = &self.region.key_pairs;
        let unknown: Vec<&str> =
            names.iter().copied().filter(|name| !pairs.values().any(|pair| pair.name == *name)).collect();
        if !unknown.is_empty() {
            return Err(not_found(("InvalidKeyPair.NotFound", "key pair"), &unknown));
        }
        let query = self.query(form, "KeyPairId", ("InvalidKeyPair.NotFound", "key pair ID"));
        let page = query.page(pairs, |pair| names.is_empty() || names.contains(&pair.name.as_str()))?;
        page.write(xml, "keySet", |xml, pair| {
            write(xml, pair);
            xml.text("keyType", &pair.key_type).text("createTime", &pair.created);
            if form.get("IncludePublicKey") == Some("true") {
                xml.text("publicKey", &pair.public_key);
            }
        });
        Ok(())
    }

    pub fn create_key_pair(&mut self, form: &Form, xml: &mut Xml) -> ApiResult<()> {
        let key_type = form.get("KeyType").unwrap_or("rsa").to_owned();
        let pair = self.add_key_pair(form, key_type, String::new())?;
        write(xml, pair);
        // Not a usable key: the simulation has no instances to log in to.
        xml.text("keyMaterial", "-----BEGIN RSA PRIVATE KEY-----\nsimulated\n-----END RSA PRIVATE KEY-----");
        Ok(())
    }

    pub fn import_key_pair(&mut self, form: &Form, xml: &mut Xml) -> ApiResult<()> {
        let invalid = || ApiError::new("InvalidKey.Format", "Key is not in valid OpenSSH public key format");
        let material = STANDARD.decode(form.required("PublicKeyMaterial")?).map_err(|_| invalid())?;
        let public_key = String::from_utf8(material).map_err(|_| invalid())?;
        let key_type = match public_key.split_whitespace().next() {
            Some("ssh-ed25519") => "ed25519",
            Some("ssh-rsa") => "rsa",
            _ => return Err(invalid()),
        };
        let pair = self.add_key_pair(form, key_type.to_owned(), public_key)?;
        write(xml, pair);
        Ok(())
    }

    fn add_key_pair(&mut self, form: &Form, key_type: String, public_key: String) -> ApiResult<&KeyPair> {
        let name = form.required("KeyName")?.to_owned();
        if self.region.key_pairs.values().any(|pair| pair.name == name) {
            let text = format!("The keypair '{name}' already exists.");
            return Err(ApiError::new("InvalidKeyPair.Duplicate", text));
        }
        let tags = tags::specified_for(form, "key-pair")?;
        let id = self.world.new_id("key");
        self.created("key_pairs", &id, &name, &tags);
        let digest = md5::compute(format!("{id}{public_key}")).0;
        let fingerprint = digest.map(|byte| format!("{byte:02x}")).join(":");
        let created = self.world.timestamp();
        let pair = KeyPair { id: id.clone(), name, key_type, public_key, fingerprint, created, tags };
        self.region.key_pairs.insert(&id, pair);
        Ok(self.region.key_pairs.get(&id).expect("the key pair was just created"))
    }

    pub fn delete_key_pair(&mut self, form: &Form, xml: &mut Xml) -> ApiResult<()> {
        let (id, name) = (form.get("KeyPairId"), form.get("KeyName"));
        let found = self.region.key_pairs.values().find(|pair| id == Some(&pair.id) || name == Some(&pair.name));
        if let Some(id) = found.map(|pair| pair.id.clone()) {
            self.region.key_pairs.remove(&id);
            self.deleted("key_pairs", &id);
        }
        xml.value("return", true);
        Ok(())
    }
}

fn write(xml: &mut Xml, pair: &KeyPair) {
    xml.text("keyPairId", &pair.id).text("keyName", &pair.name).text("keyFingerprint", &pair.fingerprint);
    tags::write(xml, &pair.tags);
}

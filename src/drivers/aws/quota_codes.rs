//! Codes of AWS's quotas: of instance families, volume types and dedicated hosts. Nodepool counts resources by them.

/// vCPUs of instances by the letters of their type: on demand, and spot if it has a limit of its own.
const FAMILIES: &[(&str, &str, Option<&str>)] = &[
    ("a", STANDARD, Some(STANDARD_SPOT)),
    ("c", STANDARD, Some(STANDARD_SPOT)),
    ("d", STANDARD, Some(STANDARD_SPOT)),
    ("h", STANDARD, Some(STANDARD_SPOT)),
    ("i", STANDARD, Some(STANDARD_SPOT)),
    ("m", STANDARD, Some(STANDARD_SPOT)),
    ("r", STANDARD, Some(STANDARD_SPOT)),
    ("t", STANDARD, Some(STANDARD_SPOT)),
    ("z", STANDARD, Some(STANDARD_SPOT)),
    ("dl", "L-6E869C2A", Some("L-85EED4F7")),
    ("f", "L-74FC7D96", Some("L-88CF9481")),
    ("g", "L-DB2E81BA", Some("L-3819A6DF")),
    ("vt", "L-DB2E81BA", Some("L-3819A6DF")),
    ("u-", "L-43DA4232", None),
    ("inf", "L-1945791B", Some("L-B5D1601B")),
    ("p", "L-417A185B", Some("L-7212CCBC")),
    ("x", "L-7295265B", Some("L-E3A00192")),
    ("trn", "L-2C3B7624", Some("L-6B0D517C")),
    ("hpc", "L-F7808C92", None),
];
const STANDARD: &str = "L-1216C47A";
const STANDARD_SPOT: &str = "L-34B43A08";

/// Volumes by their type: TB of storage, and provisioned operations per second if they have a limit.
const VOLUMES: &[(&str, &str, Option<&str>)] = &[
    ("io1", "L-FD252861", Some("L-B3A130E6")),
    ("io2", "L-09BD8365", Some("L-8D977E7E")),
    ("sc1", "L-17AF77E8", None),
    ("gp2", "L-D18FCD1D", None),
    ("gp3", "L-7A658B76", None),
    ("standard", "L-9CF3C2EB", None),
    ("st1", "L-82ACEF56", None),
];

/// Dedicated hosts by the family of their instances.
const HOSTS: &[(&str, &str)] = &[
    ("a1", "L-949445B0"),
    ("c3", "L-8D142A2E"),
    ("c4", "L-E4BF28E0"),
    ("c5", "L-81657574"),
    ("c5a", "L-03F01FD8"),
    ("c5d", "L-C93F66A2"),
    ("c5n", "L-20F13EBD"),
    ("c6a", "L-D75D2E84"),
    ("c6g", "L-A749B537"),
    ("c6gd", "L-545AED39"),
    ("c6gn", "L-5E3A299D"),
    ("c6i", "L-5FA3355A"),
    ("c6id", "L-1BBC5241"),
    ("c6in", "L-6C2C40CC"),
    ("c7a", "L-698B67E5"),
    ("c7g", "L-13B8FCE8"),
    ("c7gd", "L-EF58B059"),
    ("c7gn", "L-97677CE3"),
    ("c7i", "L-587AA6E3"),
    ("d2", "L-8B27377A"),
    ("dl1", "L-AD667A3D"),
    ("f1", "L-5C4CD236"),
    ("g3", "L-DE82EABA"),
    ("g3s", "L-9675FDCD"),
    ("g4ad", "L-FD8E9B9A"),
    ("g4dn", "L-CAE24619"),
    ("g5", "L-A6E7FE5E"),
    ("g5g", "L-4714FFEA"),
    ("g6", "L-B88B9D6B"),
    ("gr6", "L-E68C3AFF"),
    ("h1", "L-84391ECC"),
    ("i2", "L-6222C1B6"),
    ("i3", "L-8E60B0B1"),
    ("i3en", "L-77EE2B11"),
    ("i4g", "L-F62CBADB"),
    ("i4i", "L-0300530D"),
    ("im4gn", "L-93155D6F"),
    ("inf", "L-5480EFD2"),
    ("inf2", "L-E5BCF7B5"),
    ("is4gen", "L-CB4F5825"),
    ("m3", "L-3C82F907"),
    ("m4", "L-EF30B25E"),
    ("m5", "L-8B7BF662"),
    ("m5a", "L-B10F70D6"),
    ("m5ad", "L-74F41837"),
    ("m5d", "L-8CCBD91B"),
    ("m5dn", "L-DA07429F"),
    ("m5n", "L-24D7D4AD"),
    ("m5zn", "L-BD9BD803"),
    ("m6a", "L-80F2B67F"),
    ("m6g", "L-D50A37FA"),
    ("m6gd", "L-84FB37AA"),
    ("m6i", "L-D269BEFD"),
    ("m6id", "L-FDB0A352"),
    ("m6idn", "L-9721EDD9"),
    ("m6in", "L-D037CF10"),
    ("m7a", "L-4740F819"),
    ("m7g", "L-9126620E"),
    ("m7gd", "L-F8516154"),
    ("m7i", "L-30E31217"),
    ("mac1", "L-A8448DC5"),
    ("mac2", "L-5D8DADF5"),
    ("mac2-m2", "L-B90B5B66"),
    ("mac2-m2pro", "L-14F120D1"),
    ("p2", "L-2753CF59"),
    ("p3", "L-A0A19F79"),
    ("p3dn", "L-B601B3B6"),
    ("p4d", "L-86A789C3"),
    ("p5", "L-5136197D"),
    ("r3", "L-B7208018"),
    ("r4", "L-313524BA"),
    ("r5", "L-EA4FD6CF"),
    ("r5a", "L-8FE30D52"),
    ("r5ad", "L-EC7178B6"),
    ("r5b", "L-A2D59C67"),
    ("r5d", "L-8814B54F"),
    ("r5dn", "L-4AB14223"),
    ("r5n", "L-52EF324A"),
    ("r6a", "L-BC1589C5"),
    ("r6g", "L-B6D6065D"),
    ("r6gd", "L-EF284EFB"),
    ("r6i", "L-F13A970A"),
    ("r6id", "L-B89271A9"),
    ("r6idn", "L-C4EABC2C"),
    ("r6in", "L-EA99608B"),
    ("r7a", "L-4D15192B"),
    ("r7g", "L-67B8B4C7"),
    ("r7gd", "L-01137DCE"),
    ("r7i", "L-55E05032"),
    ("r7iz", "L-BC9FCC71"),
    ("t3", "L-1586174D"),
    ("trn1", "L-5E4FB836"),
    ("trn1n", "L-39926A58"),
    ("u-12tb1", "L-D6994875"),
    ("u-18tb1", "L-5F7FD336"),
    ("u-24tb1", "L-FACBE655"),
    ("u-3tb1", "L-7F5506AB"),
    ("u-6tb1", "L-89870E8E"),
    ("u-9tb1", "L-98E1FFAC"),
    ("u7in-16tb", "L-75B9BECB"),
    ("u7in-24tb", "L-CA51381E"),
    ("u7in-32tb", "L-9D28191F"),
    ("vt1", "L-A68CFBF7"),
    ("x1", "L-DE3D9563"),
    ("x1e", "L-DEF8E115"),
    ("x2gd", "L-5CC9EA82"),
    ("x2idn", "L-A84ABF80"),
    ("x2iedn", "L-D0AA08B1"),
    ("x2iezn", "L-888B4496"),
    ("z1d", "L-F035E935"),
];

/// The quota of an instance type's vCPUs; `None` if it is unknown or has none.
pub fn of_instances(instance_type: &str, is_spot: bool) -> Option<&'static str> {
    let end = instance_type.find(|letter: char| letter.is_ascii_digit()).unwrap_or(instance_type.len());
    let (_, on_demand, spot) = FAMILIES.iter().find(|(family, ..)| *family == &instance_type[..end])?;
    if is_spot { *spot } else { Some(*on_demand) }
}

/// The quotas of a volume type: of its storage and of its operations.
pub fn of_volumes(volume_type: &str) -> Option<(&'static str, Option<&'static str>)> {
    VOLUMES.iter().find(|(own, ..)| *own == volume_type).map(|(_, storage, operations)| (*storage, *operations))
}

/// The quota of hosts for an instance type.
pub fn of_hosts(instance_type: &str) -> Option<&'static str> {
    let family = instance_type.split('.').next().unwrap_or_default();
    HOSTS.iter().find(|(own, _)| *own == family).map(|(_, code)| *code)
}

/// The service whose quotas have a code.
pub fn service(code: &str) -> &'static str {
    let is_of_volumes = VOLUMES.iter().any(|(_, storage, operations)| *storage == code || *operations == Some(code));
    if is_of_volumes { "ebs" } else { "ec2" }
}

/// Whether a code counts TB of storage. The driver counts GB.
pub fn is_storage(code: &str) -> bool {
    VOLUMES.iter().any(|(_, storage, _)| *storage == code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_have_the_quotas_of_their_families() {
        assert_eq!(of_instances("t3.medium", false), Some("L-1216C47A"));
        assert_eq!(of_instances("m5.large", true), Some("L-34B43A08"));
        assert_eq!(of_instances("u-6tb1.112xlarge", false), Some("L-43DA4232"));
        assert_eq!(of_instances("u-6tb1.112xlarge", true), None);
        assert_eq!(of_instances("trn1.2xlarge", true), Some("L-6B0D517C"));
        assert_eq!(of_instances("nope.large", false), None);
        assert_eq!((of_hosts("mac2-m2.metal"), of_hosts("t3.medium")), (Some("L-B90B5B66"), Some("L-1586174D")));
        assert_eq!(of_volumes("io2"), Some(("L-09BD8365", Some("L-8D977E7E"))));
        assert!(is_storage("L-7A658B76") && !is_storage("L-B3A130E6"));
    }
}

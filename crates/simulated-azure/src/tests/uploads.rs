//! Uploads: disks, access, pages, images.

use serde_json::{Value, json};

use super::{Answer, Azure, COMPUTE, DISK_VERSION, changed, disk_path, image_path, refused, vm_body};

const MIB: u64 = 1 << 20;

fn disk_body(size: u64) -> Value {
    let creation = json!({"createOption": "Upload", "uploadSizeBytes": size});
    json!({"location": "eastus", "tags": {"a": "b"}, "properties": {"creationData": creation}})
}

fn image_body(disk: &str) -> Value {
    let disk =
        json!({"osType": "Linux", "osState": "Generalized", "managedDisk": {"id": format!("{COMPUTE}/disks/{disk}")}});
    json!({"location": "eastus", "tags": {"a": "b"},
        "properties": {"hyperVGeneration": "V2", "storageProfile": {"osDisk": disk, "zoneResilient": true}}})
}

impl Azure {
    fn act(&mut self, disk: &str, action: &str, body: &Value) -> Answer {
        self.call("POST", &format!("{COMPUTE}/disks/{disk}/{action}?api-version={DISK_VERSION}"), body)
    }

    /// Creates a disk with write access, and returns the SAS URL without its base.
    fn upload(&mut self, disk: &str, size: u64) -> String {
        let created = self.call("PUT", &disk_path(disk), &disk_body(size));
        assert_eq!(created.status, 202, "{}", created.text);
        let output = self.operation(&created)["properties"]["output"].clone();
        assert_eq!(output["id"].as_str().unwrap(), format!("{COMPUTE}/disks/{disk}"));
        let granted = self.act(disk, "beginGetAccess", &json!({"access": "Write", "durationInSeconds": 60}));
        let operation = self.operation(&granted);
        let sas = operation["properties"]["output"]["accessSAS"].as_str().unwrap();
        let location = granted.header("Location").strip_prefix("http://api").unwrap();
        assert_eq!(self.get(location).json()["accessSAS"], sas);
        sas.strip_prefix("http://api").unwrap().to_owned()
    }

    fn write(&mut self, sas: &str, start: u64, data: &[u8]) -> Answer {
        let range = format!("bytes={start}-{}", start + data.len() as u64 - 1);
        let headers = [("x-ms-page-write", "Update"), ("x-ms-blob-type", "PageBlob"), ("range", range.as_str())];
        self.send("PUT", &format!("{sas}&comp=page"), &headers, data)
    }
}

fn footer() -> Vec<u8> {
    let mut footer = vec![0; 512];
    footer[..8].copy_from_slice(b"conectix");
    footer
}

#[test]
fn an_upload_becomes_an_image() {
    let mut azure = Azure::new(&[]);
    let size = MIB + 512;
    let sas = azure.upload("d", size);
    assert_eq!(azure.write(&sas, 0, &[7; 4096]).status, 201);
    assert_eq!(azure.write(&sas, MIB, &footer()).status, 201);
    let blob = azure.sim("GET", "/sim/blob?disk=d");
    assert_eq!((&blob["written_pages"], &blob["has_footer"], &blob["ranges"]), (&json!(9), &json!(true), &json!(2)));
    let early = azure.call("PUT", &image_path("i"), &image_body("d"));
    assert_eq!(early.error(), refused(409, "OperationNotAllowed"));
    assert_eq!(azure.delete(&disk_path("d")).error(), refused(409, "OperationNotAllowed"));
    let ended = azure.act("d", "endGetAccess", &json!({}));
    assert_eq!((ended.status, &azure.operation(&ended)["status"]), (202, &json!("Succeeded")));
    assert_eq!(azure.get(&disk_path("d")).json()["properties"]["diskState"], "Unattached");
    assert_eq!(azure.write(&sas, 0, &[7; 512]).status, 403);
    let created = azure.call("PUT", &image_path("i"), &image_body("d"));
    assert_eq!(created.status, 201, "{}", created.text);
    assert_eq!(azure.operation(&created)["status"], "Succeeded");
    azure.delete(&disk_path("d"));
    assert!(azure.disks().is_empty());
    let image = azure.get(&image_path("i")).json();
    assert_eq!((&image["properties"]["provisioningState"], &image["tags"]), (&json!("Succeeded"), &json!({"a": "b"})));
    assert_eq!(azure.sim("GET", "/sim/blob?image=i")["sha256"], blob["sha256"]);
    let own = changed(vm_body("np1"), "/properties/storageProfile/imageReference", json!({"id": image["id"]}));
    assert_eq!(azure.put_vm("np1", &own).status, 201);
    assert_eq!(azure.delete(&image_path("i")).status, 202);
    assert_eq!(azure.get(&image_path("i")).error(), refused(404, "ResourceNotFound"));
    assert_eq!(azure.delete(&image_path("i")).status, 204);
}

#[test]
fn pages_are_checked() {
    let mut azure = Azure::new(&[]);
    let sas = azure.upload("d", 8 * MIB + 512);
    let code = |answer: &Answer| (answer.status, answer.header("x-ms-error-code").to_owned());
    let wrong = azure.write(&sas.replace("sig=", "sig=0"), 0, &[0; 512]);
    assert_eq!(code(&wrong), refused(403, "AuthenticationFailed"));
    assert!(wrong.text.contains("<Code>AuthenticationFailed</Code>"), "{}", wrong.text);
    assert_eq!(code(&azure.write(&sas, 1, &[0; 512])), refused(416, "InvalidPageRange"));
    assert_eq!(code(&azure.write(&sas, 8 * MIB + 512, &[0; 512])), refused(416, "InvalidPageRange"));
    assert_eq!(code(&azure.write(&sas, 0, &vec![0; 4 * MIB as usize + 512])), refused(413, "RequestBodyTooLarge"));
    assert_eq!(code(&azure.send("PUT", &format!("{sas}&comp=page"), &[], b"")), refused(400, "MissingRequiredHeader"));
    assert_eq!(azure.write(&sas, 0, &vec![1; 4 * MIB as usize]).status, 201);
    assert_eq!(azure.send("HEAD", &sas, &[], b"").header("x-ms-blob-content-length"), (8 * MIB + 512).to_string());
    azure.wait(60.0);
    assert_eq!(code(&azure.write(&sas, 0, &[1; 512])), refused(403, "AuthenticationFailed"));
    assert!(!azure.sim("GET", "/sim/history").to_string().contains("sig="));
}

#[test]
fn sizes_and_footers_of_uploads_are_checked() {
    let mut azure = Azure::new(&["--upload-minimum", "20972032"]);
    for size in [512, 20 * MIB, 20_972_032 + 100, 20_972_032 + 512] {
        let answer = azure.call("PUT", &disk_path("d"), &disk_body(size));
        assert_eq!(answer.error(), refused(400, "InvalidParameter"), "{size}");
    }
    azure.upload("d", 20_972_032);
    let end = azure.act("d", "endGetAccess", &Value::Null);
    assert_eq!(end.status, 202);
    azure.disks();
    let created = azure.call("PUT", &image_path("i"), &image_body("d"));
    assert_eq!(azure.operation(&created)["error"]["code"], "InvalidVhd");
    assert_eq!(azure.get(&image_path("i")).json()["properties"]["provisioningState"], "Failed");
    azure.knobs(json!({"check_footer": false, "upload_minimum": 0}));
    azure.upload("e", 4096);
    let empty =
        json!({"location": "eastus", "properties": {"diskSizeGB": 8, "creationData": {"createOption": "Empty"}}});
    assert_eq!(azure.call("PUT", &disk_path("f"), &empty).status, 202);
    assert_eq!(azure.get(&disk_path("f")).json()["properties"]["diskSizeGB"], 8);
    let access = json!({"access": "Write", "durationInSeconds": 60});
    assert_eq!(azure.act("f", "beginGetAccess", &access).error(), refused(409, "OperationNotAllowed"));
    assert_eq!(azure.act("x", "beginGetAccess", &access).error(), refused(404, "ResourceNotFound"));
}

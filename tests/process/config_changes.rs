//! Changes of files on disk, noticed by the launcher as a process: the configuration, the secure file and clouds.yaml.

use std::fs;
use std::os::unix::fs::symlink;

use testkit::daemon_process::{Coordinator, Daemon, PROCESS_TIMEOUT, WorkDir};
use testkit::{programs, real, wait};

const LOADED: &str = "configuration loaded: ";

async fn until_logged(launcher: &Daemon, text: &str, number: usize) {
    let what = format!("{text:?} in the log {number} times");
    wait::until(&what, PROCESS_TIMEOUT, async || launcher.log().matches(text).count() == number).await;
}

fn labels(coordinator: &Coordinator, labels: &str) -> String {
    coordinator.configuration().replace("labels: []", &format!("labels: [{labels}]"))
}

#[tokio::test]
async fn each_way_to_replace_the_files_is_noticed() {
    let work_dir = WorkDir::new("");
    let coordinator = Coordinator::start(&work_dir.path("coordinator")).await;
    work_dir.configure(&coordinator.configuration());
    let server = format!("zookeeper-servers: [{{host: 127.0.0.1, port: {}}}]\n", coordinator.port);
    work_dir.write("secure.conf", &server);
    let launcher = work_dir.launcher(&["-f", "-s", "secure.conf"]);
    work_dir.wait_until_ready().await;

    work_dir.configure(&labels(&coordinator, "{name: written}"));
    until_logged(&launcher, LOADED, 1).await;

    let text = fs::read_to_string(work_dir.path("nodepool.yaml")).unwrap().replace("written", "renamed");
    work_dir.write(".nodepool.yaml.swp", &text);
    fs::rename(work_dir.path(".nodepool.yaml.swp"), work_dir.path("nodepool.yaml")).unwrap();
    until_logged(&launcher, LOADED, 2).await;

    work_dir.write("secure.conf", &format!("{server}# Another time.\n"));
    until_logged(&launcher, LOADED, 3).await;

    work_dir.write("nodepool.yaml", "labels: [");
    until_logged(&launcher, "keeping the active one", 1).await;
    work_dir.write("nodepool.yaml", &text);
    until_logged(&launcher, LOADED, 4).await;
    assert_eq!(launcher.log().matches("keeping the active one").count(), 1);
}

#[tokio::test]
async fn each_swap_of_a_config_map_is_noticed() {
    let work_dir = WorkDir::new("");
    let coordinator = Coordinator::start(&work_dir.path("coordinator")).await;
    work_dir.configure(&coordinator.configuration());
    let text = fs::read_to_string(work_dir.path("nodepool.yaml")).unwrap();
    let publish = |version: &str| {
        let (target, link) = (format!("..{version}"), work_dir.path("..data"));
        fs::create_dir(work_dir.path(&target)).unwrap();
        work_dir.write(
            &format!("{target}/nodepool.yaml"),
            &text.replace("labels: []", &format!("labels: [{{name: {version}}}]")),
        );
        symlink(&target, work_dir.path("..data_tmp")).unwrap();
        let before = fs::read_link(&link).ok();
        fs::rename(work_dir.path("..data_tmp"), link).unwrap();
        before.into_iter().for_each(|before| fs::remove_dir_all(work_dir.path(before.to_str().unwrap())).unwrap());
    };
    publish("one");
    fs::remove_file(work_dir.path("nodepool.yaml")).unwrap();
    symlink("..data/nodepool.yaml", work_dir.path("nodepool.yaml")).unwrap();
    let launcher = work_dir.launcher(&["-f"]);
    work_dir.wait_until_ready().await;
    for (number, version) in ["two", "three"].into_iter().enumerate() {
        publish(version);
        until_logged(&launcher, LOADED, number + 1).await;
    }
}

#[tokio::test]
async fn a_provider_follows_its_clouds_yaml() {
    let work_dir = WorkDir::new("");
    let coordinator = Coordinator::start(&work_dir.path("coordinator")).await;
    let provider = "providers: [{name: lab, driver: openstack, cloud: c, pools: []}]";
    work_dir.configure(&coordinator.configuration().replace("providers: []", provider));
    let launcher = work_dir.launcher(&["-f"]);
    launcher.wait_for_log("Error starting provider").await;
    work_dir.wait_until_ready().await;
    for number in 1..=2 {
        let auth = format!("{{auth_url: 'http://127.0.0.1:9', username: u, password: p{number}, project_name: p}}");
        work_dir.write("clouds.yaml.new", &format!("clouds: {{c: {{auth: {auth}}}}}\n"));
        fs::rename(work_dir.path("clouds.yaml.new"), work_dir.path("clouds.yaml")).unwrap();
        until_logged(&launcher, "provider started", number).await;
    }
}

#[tokio::test]
async fn without_file_events_changes_are_noticed_by_polls() {
    if real::skipped() {
        return;
    }
    let work_dir = WorkDir::new("");
    let coordinator = Coordinator::start(&work_dir.path("coordinator")).await;
    work_dir.configure(&coordinator.configuration());
    let launcher = format!("exec {} -f -c nodepool.yaml", programs::launcher());
    let script = format!("echo 0 > /proc/sys/user/max_inotify_instances && {launcher}");
    let launcher = work_dir.start("unshare", &["--user", "--map-root-user", "sh", "-c", &script]);
    work_dir.wait_until_ready().await;
    for (number, label) in ["one", "two"].into_iter().enumerate() {
        work_dir.configure(&labels(&coordinator, &format!("{{name: {label}}}")));
        until_logged(&launcher, LOADED, number + 1).await;
    }
    assert_eq!(launcher.log().matches("cannot watch the configuration files").count(), 1);
}

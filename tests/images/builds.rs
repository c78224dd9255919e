//! Image builds: the conditions of their start, the arguments of the command, and the record of the result.

use std::collections::BTreeSet;

use bytes::Bytes;
use nodepool::actors::process::context::SessionEnd;
use nodepool_model::records::image_build::BuildState;
use nodepool_model::records::time::Seconds;
use nodepool_zk::locks::lock::{make_path, try_lock};
use nodepool_zk::paths;
use testkit::in_process_builder::{BuilderHarness, names};
use testkit::in_process_launcher::{on_real_time, until};
use zookeeper_server::types::CreateMode;

#[test]
fn an_image_without_a_build_is_built() {
    on_real_time(async {
        let harness = BuilderHarness::create();
        let _builder = harness
            .start(&["name: debian, formats: [qcow2, raw], elements: [debian, vm], release: 12, python-path: /py"]);
        let builds = harness.until_built("debian", 1).await;
        let [(id, build)] = &builds[..] else { panic!("{builds:?}") };
        assert!(id.as_str().len() == 32 && id.as_str().bytes().all(|byte| byte.is_ascii_hexdigit()), "{id}");
        assert_eq!(build.builder_id.as_deref(), Some("705c8f5d-6bcc-4bb5-bd96-f61902760199"));
        assert_eq!(build.formats, BTreeSet::from(["qcow2", "raw"].map(str::to_owned)));
        assert_eq!((build.username.as_deref(), build.python_path.as_deref()), (Some("zuul"), Some("/py")));
        let base = harness.path("images").join(format!("debian-{id}"));
        let base = base.display();
        let options = "-x -t qcow2,raw --checksum --no-tmpfs --qemu-img-options compat=0.10";
        assert_eq!(harness.calls(), [format!("{options} -o {base} debian vm")]);
        let environment = std::fs::read_to_string(harness.path("environment")).unwrap();
        let expected = format!(
            "DIB_RELEASE=12 DIB_IMAGE_NAME=debian DIB_IMAGE_FILENAME={base} ELEMENTS_PATH=/elements COLOUR=blue\n"
        );
        assert_eq!(environment, expected);
        let log = std::fs::read_to_string(harness.path("logs").join(format!("debian-{id}.log"))).unwrap();
        assert_eq!(log, "building debian\nExit code: 0\n");
        assert!(names(&harness.path("images")).contains(&format!("debian-{id}.qcow2")));
    });
}

#[test]
fn a_build_request_is_deleted_only_when_its_build_exists() {
    on_real_time(async {
        let harness = BuilderHarness::create();
        harness.put_foreign_build("debian", 10.0, &["raw"]).await;
        harness.create_flag_file("fail");
        let _builder = harness.start(&["name: debian, formats: [raw]"]);
        harness.request_build("debian").await;
        until("two failures", async || harness.count_builds("debian", BuildState::Failed).await >= 2).await;
        assert!(harness.is_build_requested("debian").await);
        let failed = harness.builds("debian").await.into_iter().find(|(_, build)| build.state == BuildState::Failed);
        assert!(failed.unwrap().1.formats.is_empty());
        harness.remove_flag_file("fail");
        harness.until_built("debian", 2).await;
        until("the request to be deleted", async || !harness.is_build_requested("debian").await).await;
        let calls = harness.calls().len();
        harness.request_build("other").await;
        tokio::task::yield_now().await;
        assert_eq!(harness.calls().len(), calls);
    });
}

#[test]
fn a_paused_image_is_not_built_until_resumed() {
    on_real_time(async {
        let harness = BuilderHarness::create();
        let pause = paths::image_pause(&"held".into());
        make_path(&harness.zk, paths::parent(&pause).unwrap()).await.unwrap();
        harness.zk.create(&pause, Bytes::new(), CreateMode::Persistent).await.unwrap();
        let _builder = harness.start(&[
            "name: held, formats: [raw]",
            "name: never, formats: [raw], pause: true",
            "name: free, formats: [raw]",
        ]);
        harness.request_build("never").await;
        harness.until_built("free", 1).await;
        assert_eq!((harness.builds("held").await.len(), harness.builds("never").await.len()), (0, 0));
        harness.zk.delete(&pause, -1).await.unwrap();
        harness.until_built("held", 1).await;
        assert_eq!(harness.builds("never").await.len(), 0);
        assert!(harness.is_build_requested("never").await);
    });
}

#[test]
fn an_old_or_incomplete_build_is_rebuilt() {
    on_real_time(async {
        let harness = BuilderHarness::create();
        harness.put_foreign_build("fresh", 10.0, &["raw", "vhd"]).await;
        harness.put_foreign_build("old", 100.0, &["raw"]).await;
        harness.put_foreign_build("lacking", 10.0, &["vhd"]).await;
        let _builder = harness.start(&[
            "name: fresh, formats: [raw], rebuild-age: 60",
            "name: old, formats: [raw], rebuild-age: 60",
            "name: lacking, formats: [raw], rebuild-age: 60",
        ]);
        harness.until_built("old", 2).await;
        harness.until_built("lacking", 2).await;
        assert_eq!(harness.builds("fresh").await.len(), 1);
    });
}

#[test]
fn a_build_expires_without_any_other_event() {
    on_real_time(async {
        let harness = BuilderHarness::create();
        let _builder = harness.start_with(&["name: debian, formats: [raw], rebuild-age: 1"], |options| {
            options.build_interval = Seconds(1000.0);
        });
        harness.until_built("debian", 3).await;
    });
}

#[test]
fn an_image_that_another_builder_builds_is_not_built() {
    on_real_time(async {
        let harness = BuilderHarness::create();
        let directory = paths::image_builds_lock(&"debian".into());
        let lock = try_lock(&harness.zk, &directory, "").await.unwrap().expect("the lock is free");
        let two = [(); 2].map(|()| {
            let images = ["name: debian, formats: [raw]", "name: other, formats: [raw]"];
            harness.start_with(&images, |options| options.build_workers = 3)
        });
        harness.until_built("other", 1).await;
        assert_eq!(harness.builds("debian").await.len(), 0);
        lock.release().await.unwrap();
        harness.until_built("debian", 1).await;
        assert_eq!(harness.calls().len(), two.len(), "{:?}", harness.calls());
    });
}

#[test]
fn failed_builds_and_builds_without_a_file_are_recorded_as_failed() {
    on_real_time(async {
        for (flag, image) in [
            ("fail", "name: debian, formats: [raw]"),
            ("empty", "name: debian, formats: [raw]"),
            ("hang", "name: debian, formats: [raw], build-timeout: 1"),
        ] {
            let harness = BuilderHarness::create();
            harness.create_flag_file(flag);
            let _builder = harness.start(&[image]);
            until(flag, async || harness.count_builds("debian", BuildState::Failed).await >= 1).await;
            assert_eq!(harness.count_builds("debian", BuildState::Ready).await, 0, "{flag}");
            harness.remove_flag_file(flag);
            harness.until_built("debian", 1).await;
        }
    });
}

#[test]
fn a_build_whose_record_was_deleted_leaves_no_file() {
    on_real_time(async {
        let harness = BuilderHarness::create();
        harness.create_flag_file("hang");
        let _builder =
            harness.start_with(&["name: debian, formats: [raw]"], |options| options.build_interval = Seconds(1000.0));
        until("the command to run", async || !harness.calls().is_empty()).await;
        let (id, _) = harness.builds("debian").await.remove(0);
        harness.zk.delete(&paths::image_build(&"debian".into(), &id), -1).await.unwrap();
        harness.remove_flag_file("hang");
        let is_of_build = |name: &String| name.contains(id.as_str());
        until("its files to be deleted", async || {
            let claims = names(&harness.path("images/.builds"));
            !names(&harness.path("images")).iter().chain(&claims).any(is_of_build)
        })
        .await;
        assert_eq!(harness.builds("debian").await.len(), 0);
    });
}

#[test]
fn an_unwritable_directory_fails_builds_until_writable() {
    on_real_time(async {
        for folder in ["images", "logs"] {
            let harness = BuilderHarness::create();
            let directory = harness.path(folder);
            let _ = std::fs::remove_dir(&directory);
            std::fs::write(&directory, "a file is in the way").unwrap();
            let _builder = harness.start(&["name: debian, formats: [raw]"]);
            until(folder, async || harness.count_builds("debian", BuildState::Failed).await >= 1).await;
            std::fs::remove_file(&directory).unwrap();
            std::fs::create_dir(&directory).unwrap();
            harness.until_built("debian", 1).await;
        }
    });
}

#[test]
fn a_missing_build_command_fails_the_build_and_leaves_no_files() {
    on_real_time(async {
        let harness = BuilderHarness::create();
        std::fs::remove_file(harness.path("dib")).unwrap();
        let _builder = harness.start_with(&["name: debian, formats: [raw]"], |options| {
            options.build_interval = Seconds(1000.0);
            options.cleanup_interval = Seconds(1.0);
        });
        until("a failure", async || harness.count_builds("debian", BuildState::Failed).await == 1).await;
        until("the build to be deleted", async || {
            harness.builds("debian").await.is_empty() && names(&harness.path("images/.builds")).is_empty()
        })
        .await;
    });
}

#[test]
fn a_build_whose_record_was_deleted_is_cancelled() {
    on_real_time(async {
        let harness = BuilderHarness::create();
        harness.create_flag_file("hang");
        let _builder = harness.start_with(&["name: debian, formats: [raw]"], |options| {
            options.build_interval = Seconds(1000.0);
            options.build_poll_interval = Seconds(0.1);
        });
        until("the command to run", async || !harness.calls().is_empty()).await;
        let (id, _) = harness.builds("debian").await.remove(0);
        harness.zk.delete(&paths::image_build(&"debian".into(), &id), -1).await.unwrap();
        let image_path = format!("{}/images/debian-{id}", harness.folder.path().display());
        until("its processes to end", async || !testkit::in_process_builder::is_running(&image_path)).await;
    });
}

#[test]
fn session_loss_cancels_a_build_and_kills_its_processes() {
    on_real_time(async {
        let harness = BuilderHarness::create();
        harness.create_flag_file("hang");
        let builder = harness.start(&["name: debian, formats: [raw]"]);
        until("the command to run", async || !harness.calls().is_empty()).await;
        harness.zookeeper.expire(builder.session_id);
        assert_eq!(builder.running.await.unwrap(), SessionEnd::Expired);
        let image_path = format!("{}/images/debian-", harness.folder.path().display());
        until("its processes to end", async || !testkit::in_process_builder::is_running(&image_path)).await;
        assert_eq!(harness.builds("debian").await[0].1.state, BuildState::Building, "the next session cleans up");
    });
}

// A cancelled build has gigabytes of temporary files and mounted file systems to clean up.
#[test]
fn a_build_cancelled_by_session_loss_may_clean_up() {
    on_real_time(async {
        let harness = BuilderHarness::create();
        harness.create_flag_file("slow-exit");
        harness.create_flag_file("hang");
        let builder = harness.start(&["name: debian, formats: [raw]"]);
        until("the command to run", async || !harness.calls().is_empty()).await;
        harness.zookeeper.expire(builder.session_id);
        builder.running.await.unwrap();
        until("the build to exit", async || harness.path("exited").exists()).await;
        let image_path = format!("{}/images/debian-", harness.folder.path().display());
        until("its processes to end", async || !testkit::in_process_builder::is_running(&image_path)).await;
    });
}

#[test]
fn a_build_is_newer_than_one_with_a_future_timestamp() {
    on_real_time(async {
        let harness = BuilderHarness::create();
        harness.put_foreign_build("debian", -3600.0, &["raw"]).await;
        let _builder = harness.start(&["name: debian, formats: [raw, qcow2]", "name: other, formats: [raw]"]);
        let builds = harness.until_built("debian", 2).await;
        assert_eq!(builds[1].1.formats.len(), 2, "the build with both formats is the newest: {builds:?}");
        harness.until_built("other", 1).await;
        assert_eq!(harness.builds("debian").await.len(), 2, "no further build is needed");
    });
}

#[test]
fn a_graceful_stop_finishes_the_running_build_and_starts_none() {
    on_real_time(async {
        let harness = BuilderHarness::create();
        harness.create_flag_file("hang");
        let builder = harness.start(&["name: debian, formats: [raw]", "name: other, formats: [raw]"]);
        until("the command to run", async || !harness.calls().is_empty()).await;
        builder.process.stop_gracefully();
        harness.remove_flag_file("hang");
        assert_eq!(builder.running.await.unwrap(), SessionEnd::Stopped);
        assert_eq!(harness.count_builds("debian", BuildState::Ready).await, 1);
        assert_eq!(harness.builds("other").await.len(), 0);
    });
}

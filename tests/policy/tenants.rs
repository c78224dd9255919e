//! The limits of tenants, while requests are being taken up.

use std::sync::Arc;

use crate::launches::Scene;
use crate::worlds::{LAUNCHER, Spec, request_id};
use nodepool::model::ids::{LauncherId, PoolId};
use nodepool::model::quantity::Amounts;
use nodepool::model::snapshot::WriteError;
use nodepool::policy::pool::{Effect, Event, Pool};
use nodepool::policy::tenants::Taking;

/// Three requests for one node each, of a tenant that may have two.
fn three_for_two() -> Scene {
    Scene::of(&Spec {
        hosts: vec!["h1 labels=a".to_owned()],
        requests: ["200-1 a tenant=t", "200-2 a tenant=t", "200-3 a tenant=t"].map(str::to_owned).into(),
        tenants: vec!["t instances=2".to_owned()],
        ..Spec::default()
    })
}

fn claims(effects: &[Effect]) -> usize {
    effects.iter().filter(|effect| matches!(effect, Effect::Claim(_))).count()
}

// As many as came at once were taken up, before the first of them counted.
#[test]
fn requests_that_come_at_once_do_not_exceed_the_limit_of_their_tenant() {
    let mut scene = three_for_two();
    assert_eq!(claims(&scene.step(Event::Wake)), 2);
    let why = scene.pool.why(&request_id("200-3"), &scene.built.snapshot).unwrap();
    assert_eq!(why.reason, "tenant t is at its limit: needs instances 1, free 0");
    assert_eq!(claims(&scene.step(Event::Wake)), 0, "nothing has changed");
    // Of one it is known that it takes nothing after all.
    scene.step(Event::Claimed(request_id("200-1"), Err(WriteError::Conflict)));
    assert_eq!(claims(&scene.step(Event::Wake)), 1);
}

#[test]
fn what_a_request_takes_counts_once_its_nodes_are_there() {
    let mut scene = three_for_two();
    scene.built.snapshot.remove_request(&request_id("200-3"));
    scene.built.snapshot.remove_request(&request_id("200-2"));
    scene.begin();
    assert!(scene.pool.taking().is_empty(), "the picture shows it");
    let tenant = "t".into();
    assert_eq!(scene.built.snapshot.ledger.used_by_tenant(&tenant).get("instances"), 1.0);
}

// Two pools of one process looked at the same picture.
#[test]
fn pools_of_one_process_do_not_exceed_the_limit_together() {
    let mut scene = three_for_two();
    let other = LauncherId::from("launcher-other-main");
    let taking: Taking =
        [(request_id("200-9"), ("t".into(), Amounts::none().with("instances", 1.0)))].into_iter().collect();
    assert!(!scene.built.board.put_taking(&other, &taking), "nobody needs to look again");
    scene.pool.set_tried(&scene.built.board);
    assert_eq!(claims(&scene.step(Event::Wake)), 1);
    assert!(scene.built.board.put_taking(&other, &Taking::new()), "there is room for others");
    scene.pool.set_tried(&scene.built.board);
    assert_eq!(claims(&scene.step(Event::Wake)), 1);

    // And the other way round.
    let mut second = Pool::new(PoolId::new("lab", "second"), other);
    let ours = Arc::new(scene.pool.taking().clone());
    assert_eq!(ours.len(), 2);
    scene.built.board.put_taking(&LauncherId::from(LAUNCHER), &ours);
    second.set_tried(&scene.built.board);
    assert_eq!(claims(&second.step(Event::Wake, &scene.built.world())), 0);
}

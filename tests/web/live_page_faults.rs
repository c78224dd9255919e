//! The live page under faults: malformed records, lost and late replies of the API, and partial data.

use crate::browser::Browser;
use crate::live_page_harness::{
    DESKTOP, INTERPOSER, LivePageHarness, assert_console_is_empty, open_interposed, wait_until_api_shows,
    wait_until_true,
};

/// Records and addresses may have any content; a malformed one hides no other.
#[tokio::test]
async fn malformed_records_do_not_hide_others() {
    if testkit::real::skipped() {
        return;
    }
    let harness = LivePageHarness::new().await;
    let record =
        r#"{"state": "ready", "state_time": 1e18, "provider": "elsewhere", "pool": "main", "type": ["small"]}"#;
    harness.put("/nodepool/nodes/0000000001", record).await;
    harness.put_node(2, "hold", "").await;
    let request = r#"{"state": "fulfilled", "state_time": 1e300, "created_time": 1e300, "node_types": ["small"], "requestor": "odd", "nodes": []}"#;
    harness.put("/nodepool/requests/200-0000000001", request).await;
    let build = "/nodepool/images/debian/builds/0123456789abcdef0123456789abcdef";
    harness.put(build, r#"{"state": "ready", "state_time": 1e18, "builder": "nb01", "formats": "raw"}"#).await;
    let browser = Browser::start(DESKTOP).await;
    for (view, texts) in [
        ("nodes", ["0000000001", "0000000002"]),
        ("requests", ["200-0000000001", "odd"]),
        ("images", ["debian", "nb01"]),
        ("node/0000000001", ["Record", "elsewhere"]),
        ("request/200-0000000001", ["Record", "odd"]),
        ("node/%", ["There is no such page", "To the overview"]),
        ("constructor", ["There is no such page", "To the overview"]),
        ("toString", ["There is no such page", "To the overview"]),
        ("", ["all nodes", "hold"]),
    ] {
        browser.open(&harness.url(&format!("#/{view}"))).await;
        // A change of the fragment alone does not load the page.
        browser.run("location.reload()").await;
        browser.wait_for_text("live").await;
        for text in texts {
            browser.wait_for_text(text).await;
        }
    }
    assert_console_is_empty(&browser).await;
    browser.quit().await;
}

#[tokio::test]
async fn a_failed_load_is_retried_while_the_stream_is_open() {
    if testkit::real::skipped() {
        return;
    }
    let harness = LivePageHarness::new().await;
    harness.put_node(1, "ready", "").await;
    let fails = r"between.stubs['/api/state'] = (real) => {
        between.requests += 1;
        return between.requests < 3 ? Promise.reject(new TypeError('cut off')) : real();
    };";
    let browser = open_interposed(&harness, "#/nodes", fails).await;
    browser.wait_for_text("the server does not respond, retrying").await;
    browser.wait_for_text("0000000001").await;
    browser.wait_for_text_removed("retrying").await;
    // A failed reload is retried as well; the known state stays visible meanwhile.
    browser.run("between.requests = 0; between.stream.dispatchEvent(new MessageEvent('reload', { data: '{}' }))").await;
    browser.wait_for_text("the server does not respond, retrying").await;
    assert!(browser.text().await.contains("0000000001"));
    harness.put_node(2, "ready", "").await;
    browser.wait_for_text("0000000002").await;
    browser.wait_for_text_removed("retrying").await;
    assert_console_is_empty(&browser).await;
    browser.quit().await;
}

#[tokio::test]
async fn a_late_older_reply_changes_nothing() {
    if testkit::real::skipped() {
        return;
    }
    let harness = LivePageHarness::new().await;
    harness.put_node(1, "ready", "").await;
    wait_until_api_shows(&harness, "0000000001").await;
    let late_reply = r"between.stubs['/api/state'] = async (real) => {
        between.requests += 1;
        const own = between.requests;
        const reply = await real();
        if (own === 1) await between.hold();
        return reply;
    };";
    let browser = open_interposed(&harness, "#/nodes", late_reply).await;
    wait_until_true(&browser, "between.release").await;
    harness.put_node(2, "ready", "").await;
    wait_until_api_shows(&harness, "0000000002").await;
    browser.run("between.stream.dispatchEvent(new MessageEvent('reload', { data: '{}' }))").await;
    browser.wait_for_text("0000000002").await;
    browser.run("between.release()").await;
    harness.put_node(3, "ready", "").await;
    browser.wait_for_text("0000000003").await;
    browser.wait_for_text("3 nodes").await;
    // A regression of the state would be detected as a gap and cause another load.
    assert_eq!(browser.run("return between.requests").await, 2);
    assert_console_is_empty(&browser).await;
    browser.quit().await;
}

#[tokio::test]
async fn a_lost_patch_is_detected_by_the_next_one() {
    if testkit::real::skipped() {
        return;
    }
    let harness = LivePageHarness::new().await;
    harness.put_node(1, "ready", "").await;
    let browser = open_interposed(&harness, "#/nodes", "").await;
    browser.wait_for_text("0000000001").await;
    browser.run("between.ignored.add('patch')").await;
    harness.put_node(2, "ready", "").await;
    wait_until_api_shows(&harness, "0000000002").await;
    wait_until_true(&browser, "between.missed").await;
    assert!(!browser.text().await.contains("0000000002"));
    browser.run("between.ignored.clear()").await;
    harness.put_node(3, "ready", "").await;
    browser.wait_for_text("0000000003").await;
    browser.wait_for_text("0000000002").await;
    assert_console_is_empty(&browser).await;
    browser.quit().await;
}

/// Metrics may be from launchers of other versions, and records may lack fields.
#[tokio::test]
async fn partial_data_is_shown() {
    if testkit::real::skipped() {
        return;
    }
    let harness = LivePageHarness::new().await;
    harness.put_node(1, "ready", "").await;
    wait_until_api_shows(&harness, "0000000001").await;
    let incomplete = r"
    between.ignored.add('metrics');
    between.stubs['/api/metrics'] = async (real) => {
        const metrics = await (await real()).json();
        metrics.launchers.unshift({ launcher: 'bare', providers: [{ name: 'barest' }, null] }, { launcher: 'silent' }, null,
            { launcher: 'odd', providers: [{ name: 'oddest', quotas: [{}, null], pools: [{}, null], nodes: 7, calls: { count: 'many' } },
                { name: 'worst', pools: 1, quotas: 'none', refreshed_at: 1e300, calls: null, nodes: { ready: null } }] });
        metrics.reasons = {};
        return new Response(JSON.stringify(metrics));
    };
    between.stubs['/api/state'] = async (real) => {
        const state = await (await real()).json();
        state.nodes.unshift(['0000000000', 'ready', null, null, null, null, null, false, null, null, null, null]);
        state.requests.push(['200-0000000009', 'requested', null, 'zuul', ['small'], [], [], null, 0, 1e300],
            ['constructor', 'requested', 1, 'zuul', null, null, [], null, null, null]);
        return new Response(JSON.stringify(state));
    };";
    let browser = Browser::start(DESKTOP).await;
    browser.run_before_page_scripts(&format!("{INTERPOSER}{incomplete}")).await;
    for (view, texts) in [
        ("providers", ["barest", "does not report its providers", "Not reported by this launcher", "worst", "lab"]),
        ("nodes", ["0000000000", "cannot be shown", "0000000001", "2 nodes", "live"]),
        (
            "requests",
            ["200-0000000009", "the reasons follow within 5 s", "constructor", "cannot be shown", "2 requests"],
        ),
        ("", ["200-0000000009", "the reasons follow within 5 s", "all nodes", "oddest", "Launch duration"]),
    ] {
        browser.open(&harness.url(&format!("#/{view}"))).await;
        // A change of the fragment alone does not load the page.
        browser.run("location.reload()").await;
        for text in texts {
            browser.wait_for_text(text).await;
        }
        let violations = browser.accessibility_violations().await;
        assert!(violations.is_empty(), "{view}: {violations:#?}");
        browser.screenshot(format!("incomplete-{view}").trim_end_matches('-')).await;
    }
    assert_console_is_empty(&browser).await;
    browser.quit().await;
}

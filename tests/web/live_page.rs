//! The live page in a real browser: its content, updates, escaping of markup, and an empty console.

use crate::browser::{Browser, Viewport};
use crate::live_page_harness::{
    DESKTOP, LivePageHarness, PHONE, TIMEOUT, assert_console_is_empty, open_interposed, wait_until_api_shows,
    wait_until_true,
};
use nodepool_zk::Connection;

const DESKTOP_DARK: Viewport = Viewport { name: "desktop-dark", width: 1280, height: 900, dark: true };

async fn check_all_views(harness: &LivePageHarness, screen: Viewport) {
    let browser = Browser::start(screen).await;
    for view in ["", "nodes", "requests", "ended", "images", "providers", "node/0000000001"] {
        browser.open(&harness.url(&format!("#/{view}"))).await;
        browser.wait_for_text("live").await;
        if view.is_empty() {
            let tile = "return document.querySelector('.tile.tone-in-use b')?.textContent";
            testkit::wait::until("the number of nodes in use", TIMEOUT, async || browser.run(tile).await == "2").await;
        }
        let shown = match view {
            "" | "nodes" => "in-use",
            "requests" => "Requests",
            "ended" => "200-0000000007",
            "images" => "debian",
            "providers" => "lab",
            _ => "Record",
        };
        browser.wait_for_text(shown).await;
        // Only elements that scroll by themselves are wider than the screen.
        let wider =
            browser.run("return document.documentElement.scrollWidth - document.documentElement.clientWidth").await;
        assert_eq!(wider.as_f64(), Some(0.0), "{} on {}", view, screen.name);
        let violations = browser.accessibility_violations().await;
        assert!(violations.is_empty(), "{view} on {}: {violations:#?}", screen.name);
        let name = format!("{}-{}", screen.name, view.split('/').next().unwrap());
        browser.screenshot(name.trim_end_matches('-')).await;
    }
    assert_console_is_empty(&browser).await;
    browser.quit().await;
}

#[tokio::test]
async fn every_view_fits_desktop_dark_mode_and_phone() {
    if testkit::real::skipped() {
        return;
    }
    let harness = LivePageHarness::new().await;
    for (number, state) in ["ready", "in-use", "building", "hold", "deleting", "in-use"].into_iter().enumerate() {
        harness.put_node(number as u32, state, r#", "comment": "a comment", "interface_ip": "203.0.113.7""#).await;
    }
    let build = "/nodepool/images/debian/builds/0123456789abcdef0123456789abcdef";
    harness.put(build, r#"{"state": "ready", "state_time": 1700000000.0, "builder": "nb01", "formats": "raw"}"#).await;
    let upload = r#"{"state": "ready", "state_time": 1700000000.0, "external_id": "x", "external_name": "debian-1"}"#;
    harness.put(&format!("{build}/providers/elsewhere/images/0000000001"), upload).await;
    let request = r#"{"state": "fulfilled", "state_time": 1700000000.0, "node_types": ["small"], "requestor": "zuul", "nodes": []}"#;
    harness.put("/nodepool/requests/200-0000000007", request).await;
    for screen in [DESKTOP, DESKTOP_DARK, PHONE] {
        check_all_views(&harness, screen).await;
    }
}

#[tokio::test]
async fn changes_are_shown_without_a_page_reload() {
    if testkit::real::skipped() {
        return;
    }
    let harness = LivePageHarness::new().await;
    harness.put_node(1, "ready", "").await;
    let browser = Browser::start(DESKTOP).await;
    browser.open(&harness.url("#/nodes")).await;
    browser.wait_for_text("0000000001").await;
    browser.run("window.untouched = true").await;
    harness.put_node(2, "building", "").await;
    browser.wait_for_text("0000000002").await;
    harness.put_node(2, "in-use", "").await;
    browser.wait_for_text("in-use").await;
    // Search and filters by keyboard.
    browser.press("/").await;
    browser.press("0000000002").await;
    browser.wait_for_text_removed("0000000001").await;
    browser.wait_for_text("1 of 2 nodes").await;
    harness.zk.delete("/nodepool/nodes/0000000002", -1).await.unwrap();
    browser.wait_for_text_removed("0000000002").await;
    assert_eq!(browser.run("return window.untouched === true").await, true);
    // The history of a deleted node is shown.
    browser.open(&harness.url("#/node/0000000002")).await;
    browser.wait_for_text("It was deleted.").await;
    let text = browser.text().await;
    assert!(text.contains("building") && text.contains("in-use"), "{text}");
    // The page of a waiting request shows the reasons.
    harness
        .put(
            "/nodepool/requests/200-0000000001",
            r#"{"state": "requested", "state_time": 1700000000.0, "node_types": ["small", "small", "small", "small"], "requestor": "zuul", "nodes": [], "declined_by": ["other-launcher"]}"#,
        )
        .await;
    browser.open(&harness.url("#/request/200-0000000001")).await;
    browser.wait_for_text("Verdicts of the pools of this launcher").await;
    browser.wait_for_text("lab-main").await;
    assert_console_is_empty(&browser).await;
    browser.quit().await;
}

#[tokio::test]
async fn markup_is_shown_as_text() {
    if testkit::real::skipped() {
        return;
    }
    let harness = LivePageHarness::new().await;
    let nasty = r#"<img src=x onerror=\"window.hacked=1\"><script>window.hacked=1</script>"#;
    harness.put_node(1, "ready", &format!(r#", "comment": "{nasty}", "hostname": "{nasty}""#)).await;
    harness
        .put(
            "/nodepool/requests/200-0000000001",
            &format!(r#"{{"state": "failed", "state_time": 1.0, "node_types": ["{nasty}"], "requestor": "{nasty}", "event_id": "{nasty}"}}"#),
        )
        .await;
    harness.put(r"/nodepool/images/<b>image<b>", "").await;
    let browser = Browser::start(DESKTOP).await;
    for view in ["", "nodes", "requests", "images", "node/0000000001", "request/200-0000000001"] {
        browser.open(&harness.url(&format!("#/{view}"))).await;
        browser.wait_for_text("live").await;
        match view {
            "images" => browser.wait_for_text("<b>image<b>").await,
            "" => {}
            _ => browser.wait_for_text("onerror=").await,
        }
        let found = browser.run("return [window.hacked === undefined, document.querySelectorAll('main img, main script, main b:not(.tile b)').length]").await;
        assert_eq!(found, serde_json::json!([true, 0]), "{view}");
    }
    assert_console_is_empty(&browser).await;
    browser.quit().await;
}

#[tokio::test]
async fn a_page_without_its_launcher_says_so_and_reconnects() {
    if testkit::real::skipped() {
        return;
    }
    let mut harness = LivePageHarness::new().await;
    let browser = Browser::start(DESKTOP).await;
    browser.open(&harness.url("")).await;
    browser.wait_for_text("live").await;
    harness.launcher.kill();
    browser.wait_for_text("no connection to the launcher").await;
    harness.launcher = harness.work_dir.launcher(&["-f"]);
    harness.work_dir.wait_until_ready().await;
    harness.put_node(5, "hold", "").await;
    testkit::wait::until("the page to reconnect", TIMEOUT, async || {
        let text = browser.text().await;
        text.contains("live") && text.contains("hold")
    })
    .await;
    browser.quit().await;
}

/// The most frequent failure of a launcher: its session expires, and it starts another one.
#[tokio::test]
async fn an_open_page_continues_across_a_new_session() {
    if testkit::real::skipped() {
        return;
    }
    let mut harness = LivePageHarness::new().await;
    for number in 1..30 {
        harness.put_node(number, "ready", "").await;
    }
    let browser = Browser::start(DESKTOP).await;
    browser.open(&harness.url("#/nodes")).await;
    browser.wait_for_text("29 nodes").await;
    browser.run("window.untouched = true").await;
    harness.coordinator.stop().await;
    browser.wait_for_text("ZooKeeper is not responding").await;
    // A server without sessions and nodes.
    let empty = harness.work_dir.path("another coordinator");
    harness.coordinator.start_again(&empty).await;
    harness.zk = harness.coordinator.session().await;
    browser.wait_for_text_removed("ZooKeeper is not responding").await;
    browser.wait_for_text_removed("0000000029").await;
    harness.put_node(77, "ready", "").await;
    browser.wait_for_text("0000000077").await;
    browser.wait_for_text("1 node").await;
    assert_eq!(browser.run("return window.untouched === true").await, true);
    assert_console_is_empty(&browser).await;
    browser.quit().await;
}

#[tokio::test]
async fn the_page_of_a_request_follows_its_verdicts() {
    if testkit::real::skipped() {
        return;
    }
    let harness = LivePageHarness::new().await;
    let request =
        r#"{"state": "fulfilled", "state_time": 1.0, "node_types": ["small"], "requestor": "zuul", "nodes": []}"#;
    harness.put("/nodepool/requests/200-0000000001", request).await;
    // The first reply arrives after the second one.
    let verdicts = r"
    between.stubs['/api/request/'] = async (real) => {
        between.requests += 1;
        const own = between.requests;
        const found = await (await real()).json();
        found.reasons = [{ pool: 'a-pool', verdict: `verdict <${own}>`, reason: 'why', since: 1 }];
        if (own === 1) await between.hold();
        return new Response(JSON.stringify(found));
    };
    const check = () => { if (document.body && document.body.innerText.includes('verdict <1>')) between.sawOldVerdict = true; };
    new MutationObserver(check).observe(document, { subtree: true, childList: true });";
    let browser = open_interposed(&harness, "#/request/200-0000000001", verdicts).await;
    browser.wait_for_text("verdict <2>").await;
    browser.run("between.release()").await;
    browser.wait_for_text("verdict <3>").await;
    assert_eq!(browser.run("return between.sawOldVerdict === undefined").await, true);
    assert_console_is_empty(&browser).await;
    browser.quit().await;
}

#[tokio::test]
async fn the_focus_is_kept_when_other_elements_change() {
    if testkit::real::skipped() {
        return;
    }
    let harness = LivePageHarness::new().await;
    harness.put_node(1, "ready", "").await;
    wait_until_api_shows(&harness, "0000000001").await;
    let growing = r"
    let ready = 0;
    const withGrowingCount = (metrics) => {
        ready += 1;
        metrics.launchers[0].providers[0].nodes = { ready };
        return JSON.stringify(metrics);
    };
    between.stubs['/api/metrics'] = async (real) => new Response(withGrowingCount(await (await real()).json()));
    window.EventSource = class extends EventSource {
        addEventListener(name, listener) {
            super.addEventListener(name, (event) => listener(name === 'metrics' ? { data: withGrowingCount(JSON.parse(event.data)) } : event));
        }
    };";
    let browser = open_interposed(&harness, "#/providers", growing).await;
    // In each view, a link in a panel with a growing number.
    for (number, view, link) in [
        (2, "#/providers", "#/nodes?state=ready&provider=lab"),
        (3, "#/", "#/nodes?state=ready"),
        (4, "#/nodes", "#/node/0000000001"),
    ] {
        browser.run(&format!("location.hash = '{view}'")).await;
        let found =
            format!("[...document.querySelectorAll('main a')].find((a) => a.getAttribute('href') === '{link}')");
        wait_until_true(&browser, &found).await;
        let text = format!("{found}.closest('section').innerText.replace(/[0-9.]+ m?s/g, '')");
        browser.run(&format!("{found}.focus(); window.before = {text}")).await;
        harness.put_node(number, "ready", "").await;
        wait_until_true(&browser, &format!("{text} !== window.before")).await;
        let focused = browser.run("return document.activeElement.getAttribute('href')").await;
        assert_eq!(focused, link, "{view}");
    }
    assert_console_is_empty(&browser).await;
    browser.quit().await;
}

/// Chart labels of one column each, in any order of widths, and the boxes of texts that overlap or leave the chart.
const OVERLAPPING_LABELS: &str = r"
    const { durationsChart } = await import('/static/charts.js');

    const bounds = [[1, 2, 5, 10, 20, 30, 40, 50, 60, 70, 80, 90, 120, 150, 180, 300, 600, 900], [0.3333, 1.6666, 70, 1234.567, 99999, 1e7], [5]];
    const container = document.body.appendChild(document.createElement('div'));
    const found = [];
    for (const width of [260, 350, 600, 1200]) for (const some of bounds) for (const highest of [9, 99999]) {
        container.style.width = `${width}px`;
        container.replaceChildren(durationsChart({ bounds: some, counts: [...some, 0].map((_, i) => (i * 7919) % highest) }, 'launches', width));
        const chart = container.querySelector('svg').getBoundingClientRect();
        const texts = [...container.querySelectorAll('text')].map((text) => [text.textContent, text.getBoundingClientRect()]);
        if (texts.length < 2) found.push(['no labels', width, some]);
        for (const [text, box] of texts) {
            if (box.left < chart.left - 1 || box.right > chart.right + 1 || /[.][0-9]{3}/.test(text)) found.push([text, width]);
            for (const [other, next] of texts) {
                if (other !== text && box.left < next.right && next.left < box.right && box.top + 2 < next.bottom - 2 && next.top + 2 < box.bottom - 2) found.push([text, other, width]);
            }
        }
    }
    container.remove();
    return found;
";

#[tokio::test]
async fn labels_of_a_histogram_do_not_overlap_at_any_width() {
    if testkit::real::skipped() {
        return;
    }
    let harness = LivePageHarness::new().await;
    let browser = Browser::start(DESKTOP).await;
    browser.open(&harness.url("")).await;
    browser.wait_for_text("live").await;
    let script = format!("return (async () => {{ {OVERLAPPING_LABELS} }})()");
    assert_eq!(browser.run(&script).await, serde_json::json!([]));
    assert_console_is_empty(&browser).await;
    browser.quit().await;
}

#[tokio::test]
async fn ended_requests_stay_visible_after_their_records_are_deleted() {
    if testkit::real::skipped() {
        return;
    }
    let harness = LivePageHarness::new().await;
    let browser = Browser::start(DESKTOP).await;
    browser.open(&harness.url("#/ended")).await;
    browser.wait_for_text("None since this launcher started.").await;
    let node = r#", "allocated_to": "200-0000000001""#;
    harness.put_node(1, "ready", node).await;
    let request = |state: &str, nodes: &str, more: &str| {
        format!(
            r#"{{"state": "{state}", "state_time": 1700000012.5, "created_time": 1700000000.0, "node_types": ["small", "small"], "requestor": "zuul", "nodes": [{nodes}]{more}}}"#
        )
    };
    let paths = [1, 2, 3].map(|number| format!("/nodepool/requests/200-{number:010}"));
    harness.put(&paths[0], &request("fulfilled", r#""0000000001""#, "")).await;
    harness.put(&paths[1], &request("failed", "", r#", "declined_by": ["nl01-PoolWorker.lab-main-0123"]"#)).await;
    // Its lock keeps the launcher away.
    harness.put("/nodepool/requests-lock/200-0000000003/0123__lock__0000000000", "").await;
    harness.put(&paths[2], &request("pending", "", "")).await;
    wait_until_api_shows(&harness, "200-0000000003").await;
    for path in &paths {
        harness.zk.delete(path, -1).await.unwrap();
    }
    for text in [
        "12 s",
        "2 × small",
        "elsewhere / main",
        "0000000001",
        "declined by lab-main",
        "cancelled",
        "Cancelled: it was deleted",
    ] {
        browser.wait_for_text(text).await;
    }
    // Every page that is opened later shows them as well.
    browser.open(&harness.url("#/request/200-0000000001")).await;
    browser.wait_for_text("How it ended").await;
    browser.open(&harness.url("")).await;
    browser.wait_for_text("Recently ended requests").await;
    browser.wait_for_text("200-0000000002").await;
    assert_console_is_empty(&browser).await;
    browser.quit().await;
}

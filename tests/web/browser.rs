//! WebDriver client: runs Debian's chromium headless through chromedriver (<https://www.w3.org/TR/webdriver2/>).

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use testkit::real::child_process::{ChildProcess, Output};
use testkit::real::ports::{self, Port};
use testkit::{programs, real, wait};

const TIMEOUT: Duration = Duration::from_secs(60);

const RUN_AXE: &str = "const done = arguments[0]; \
    axe.run().then(result => done(result.passes.length < 10 ? 'axe checked nothing' : result.violations.map(found => ({rule: found.id, why: found.help, \
    where: found.nodes.map(node => [node.html, node.failureSummary])}))), error => done(String(error)));";

/// Path of axe-core, which is installed beside kazoo in the Python environment of the tests.
fn axe() -> PathBuf {
    let find = "import importlib.util as u; print(u.find_spec('axe_core_python').submodule_search_locations[0])";
    let found = Command::new(real::setting("NODEPOOL_TEST_PYTHON")).args(["-c", find]).output().unwrap();
    PathBuf::from(String::from_utf8(found.stdout).unwrap().trim()).join("axe.min.js")
}

pub struct Browser {
    client: reqwest::Client,
    session: String,
    home: tempfile::TempDir,
    _driver: ChildProcess,
    _port: Port,
}

/// Window size and color scheme.
#[derive(Clone, Copy, Debug)]
pub struct Viewport {
    pub name: &'static str,
    pub width: u32,
    pub height: u32,
    pub dark: bool,
}

impl Browser {
    pub async fn start(viewport: Viewport) -> Self {
        let home = tempfile::Builder::new().prefix("nodepool-test-browser-").tempdir().unwrap();
        let port = ports::reserve();
        let mut command = Command::new("chromedriver");
        command.arg(format!("--port={}", port.number)).env("HOME", home.path());
        let driver =
            ChildProcess::start("chromedriver", &mut command, Output::Logged, &home.path().join("log"), home.path());
        let client = reqwest::Client::builder().timeout(TIMEOUT).build().unwrap();
        let base = format!("http://127.0.0.1:{}", port.number);
        wait::until("chromedriver", TIMEOUT, async || client.get(format!("{base}/status")).send().await.is_ok()).await;
        let mut flags = vec![
            "--headless".to_owned(),
            "--no-sandbox".to_owned(),
            "--disable-gpu".to_owned(),
            "--disable-dev-shm-usage".to_owned(),
            "--no-first-run".to_owned(),
            "--disable-background-networking".to_owned(),
            "--disable-component-update".to_owned(),
            "--disable-sync".to_owned(),
            format!("--user-data-dir={}", home.path().join("profile").display()),
            format!("--window-size={},{}", viewport.width, viewport.height),
        ];
        if viewport.dark {
            flags.push("--force-dark-mode".to_owned());
            flags.push("--blink-settings=preferredColorScheme=0".to_owned());
        }
        let capabilities = json!({"capabilities": {"alwaysMatch": {"browserName": "chrome", "goog:chromeOptions": {"args": flags},
            "goog:loggingPrefs": {"browser": "ALL"}}}});
        let answer = client.post(format!("{base}/session")).json(&capabilities).send().await.unwrap();
        let answer: Value = answer.json().await.unwrap();
        let id = answer["value"]["sessionId"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned();
        let browser = Self { client, session: format!("{base}/session/{id}"), home, _driver: driver, _port: port };
        // A headless window may not be narrower than 500 points; the page's own size can be.
        let metrics = json!({"width": viewport.width, "height": viewport.height, "deviceScaleFactor": 1, "mobile": viewport.width < 600});
        browser.devtools("Emulation.setDeviceMetricsOverride", metrics).await;
        let scheme = if viewport.dark { "dark" } else { "light" };
        let media = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        browser.devtools("Emulation.setEmulatedMedia", media).await;
        browser
    }

    async fn devtools(&self, command: &str, parameters: Value) -> Value {
        self.post("goog/cdp/execute", json!({"cmd": command, "params": parameters})).await
    }

    async fn post(&self, path: &str, body: Value) -> Value {
        let answer = self.client.post(format!("{}/{path}", self.session)).json(&body).send().await.unwrap();
        let is_good = answer.status().is_success();
        let answer: Value = answer.json().await.unwrap();
        assert!(is_good, "{path} {body}: {answer}");
        answer["value"].clone()
    }

    async fn get(&self, path: &str) -> Value {
        let answer = self.client.get(format!("{}/{path}", self.session)).send().await.unwrap();
        let answer: Value = answer.json().await.unwrap();
        answer["value"].clone()
    }

    pub async fn open(&self, url: &str) {
        self.post("url", json!({"url": url})).await;
    }

    /// Runs a script in every page that is opened from now on, before the page's own scripts.
    pub async fn run_before_page_scripts(&self, script: &str) {
        self.devtools("Page.addScriptToEvaluateOnNewDocument", json!({"source": script})).await;
    }

    /// Runs a script in the page and returns its result.
    pub async fn run(&self, script: &str) -> Value {
        self.post("execute/sync", json!({"script": script, "args": []})).await
    }

    /// Violations of accessibility rules (WCAG 2.1, A and AA, and good practice), found by axe-core
    /// (<https://github.com/dequelabs/axe-core>).
    pub async fn accessibility_violations(&self) -> Vec<String> {
        if self.run("return typeof axe").await == "undefined" {
            let axe = std::fs::read_to_string(axe()).unwrap();
            self.run(&axe).await;
        }
        let found = self.post("execute/async", json!({"script": RUN_AXE, "args": []})).await;
        found.as_array().unwrap_or_else(|| panic!("{found}")).iter().map(ToString::to_string).collect()
    }

    pub async fn text(&self) -> String {
        self.run("return document.body.innerText").await.as_str().unwrap_or_default().to_owned()
    }

    pub async fn wait_for_text(&self, text: &str) {
        wait::until(&format!("the page to show {text:?}"), TIMEOUT, async || self.text().await.contains(text)).await;
    }

    pub async fn wait_for_text_removed(&self, text: &str) {
        wait::until(&format!("{text:?} to disappear from the page"), TIMEOUT, async || {
            !self.text().await.contains(text)
        })
        .await;
    }

    /// Sends key presses to the focused element.
    pub async fn press(&self, keys: &str) {
        let each = keys.chars().flat_map(|key| {
            [json!({"type": "keyDown", "value": key.to_string()}), json!({"type": "keyUp", "value": key.to_string()})]
        });
        let actions: Vec<Value> = each.collect();
        self.post("actions", json!({"actions": [{"type": "key", "id": "keyboard", "actions": actions}]})).await;
    }

    /// Console messages of the page since the last call.
    pub async fn console(&self) -> Vec<String> {
        let entries = self.post("se/log", json!({"type": "browser"})).await;
        let entries = entries.as_array().cloned().unwrap_or_default();
        entries.iter().map(|entry| format!("{} {}", entry["level"], entry["message"])).collect()
    }

    /// Saves a screenshot below target/screenshots as a PNG file.
    pub async fn screenshot(&self, name: &str) -> PathBuf {
        use base64::Engine;
        let encoded = self.get("screenshot").await;
        let bytes = base64::engine::general_purpose::STANDARD.decode(encoded.as_str().unwrap()).unwrap();
        let folder = programs::target_tmp().with_file_name("screenshots");
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join(format!("{name}.png"));
        std::fs::write(&path, bytes).unwrap();
        path
    }

    /// Closes the session, because a killed browser would leave processes behind.
    pub async fn quit(self) {
        let _ = self.client.delete(&self.session).send().await;
        drop(self.home);
    }
}

//! A page in a headless browser, over its `DevTools` protocol.

mod axe;

use std::{
    collections::VecDeque,
    io::{BufRead as _, BufReader, Write as _},
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    time::{Duration, Instant},
};

use serde_json::{Value, json};

pub use axe::{assert_accessible, axe_script};

/// Page of a browser. A drop ends the browser.
#[derive(Debug)]
pub struct Page {
    browser: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    session: Option<String>,
    next: u64,
    /// Events that the browser has sent by itself.
    pub events: VecDeque<Value>,
}

impl Page {
    /// Opens a URL in a new browser, whose profile is a folder.
    #[must_use]
    pub fn open(chromium: &Path, profile: &Path, url: &str) -> Self {
        // The protocol is on descriptors 3 and 4, messages end with a zero.
        let script = "exec \"$0\" --headless --no-sandbox --disable-gpu --disable-quic \
                      --disable-dev-shm-usage --no-first-run --disable-background-networking --disable-component-update \
                      --disable-sync --hide-scrollbars --remote-debugging-pipe \
                      --user-data-dir=\"$1\" about:blank 3<&0 4>&1 >/dev/null </dev/null 2>&1";
        let mut browser = Command::new("sh")
            .args(["-c", script])
            .args([chromium, profile])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let to = browser.stdin.take().unwrap();
        let from = BufReader::new(browser.stdout.take().unwrap());
        let mut page = Self {
            browser,
            to,
            from,
            session: None,
            next: 0,
            events: VecDeque::new(),
        };
        let target = page.call("Target.createTarget", &json!({ "url": "about:blank" }));
        let attach = json!({ "targetId": target["targetId"], "flatten": true });
        let session = page.call("Target.attachToTarget", &attach);
        page.session = session["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page", "Runtime", "Network", "Log"] {
            page.call(&format!("{domain}.enable"), &json!({}));
        }
        page.size(1280, 900);
        page.call("Page.navigate", &json!({ "url": url }));
        page.until("document.readyState === 'complete'");
        page
    }

    /// Sends a request, and waits for the answer; earlier events are kept.
    pub fn call(&mut self, method: &str, params: &Value) -> Value {
        self.next += 1;
        let mut message = json!({ "id": self.next, "method": method, "params": params });
        if let Some(session) = &self.session {
            message["sessionId"] = json!(session);
        }
        self.to
            .write_all(format!("{message}\0").as_bytes())
            .unwrap();
        loop {
            let mut bytes = Vec::new();
            self.from.read_until(0, &mut bytes).unwrap();
            assert_eq!(bytes.pop(), Some(0), "the browser has gone");
            let answer: Value = serde_json::from_slice(&bytes).unwrap();
            if answer["id"] == self.next {
                assert!(answer["error"].is_null(), "{method}: {}", answer["error"]);
                return answer["result"].clone();
            }
            self.events.push_back(answer);
        }
    }

    /// Evaluates an expression, and returns its value.
    pub fn eval(&mut self, expression: &str) -> Value {
        let params = json!({ "expression": expression, "returnByValue": true });
        let result = self.call("Runtime.evaluate", &params);
        assert!(
            result["exceptionDetails"].is_null(),
            "{expression}: {result}"
        );
        result["result"]["value"].clone()
    }

    /// Waits until an expression is true; panics after 30 s.
    pub fn until(&mut self, expression: &str) {
        let end = Instant::now() + Duration::from_secs(30);
        while self.eval(expression) != true {
            assert!(Instant::now() < end, "not in 30 s: {expression}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Sets the size of the window, in CSS pixels.
    pub fn size(&mut self, width: u32, height: u32) {
        let mobile = width < 600;
        let metrics = json!({
            "width": width, "height": height, "deviceScaleFactor": 1, "mobile": mobile,
        });
        self.call("Emulation.setDeviceMetricsOverride", &metrics);
    }

    /// Sets the colour scheme, `light` or `dark`.
    pub fn scheme(&mut self, name: &str) {
        let features = json!({ "features": [{ "name": "prefers-color-scheme", "value": name }] });
        self.call("Emulation.setEmulatedMedia", &features);
    }

    /// Clicks a figure's control as a person does.
    pub fn click(&mut self, figure: &str, action: &str) {
        self.eval(&format!(
            "document.querySelector('[data-for={figure}][data-do={action}]').click()"
        ));
    }

    /// Returns the content of a figure, as text that changes with it.
    pub fn drawing(&mut self, figure: &str) -> String {
        let drawing = self.eval(&format!(
            "document.querySelector('#{figure} svg').innerHTML"
        ));
        drawing.as_str().unwrap().to_owned()
    }

    /// Lets [`saved`](Self::saved) have the files that buttons save from now on: a browser asks before it writes
    /// dozens of files.
    pub fn keep_what_is_saved(&mut self) {
        self.eval(
            "URL.createObjectURL = blob => { blob.text().then(text => { window.saved = text }); return 'blob:' };\
             HTMLAnchorElement.prototype.click = () => {}",
        );
    }

    /// Returns the content of the file that the last button saved.
    pub fn saved(&mut self) -> String {
        self.until("typeof window.saved === 'string'");
        let text = self.eval("(text => { delete window.saved; return text })(window.saved)");
        text.as_str().unwrap().to_owned()
    }

    /// Writes a screenshot (`base64 -d`), if `MQ_SCREENSHOTS` names a folder.
    pub fn screenshot(&mut self, name: &str) {
        let Some(folder) = std::env::var_os("MQ_SCREENSHOTS") else {
            return;
        };
        // All animations have ended.
        std::thread::sleep(Duration::from_millis(400));
        let params = json!({ "format": "png", "captureBeyondViewport": true });
        let shot = self.call("Page.captureScreenshot", &params);
        let file = Path::new(&folder).join(format!("{name}.png.base64"));
        std::fs::write(file, shot["data"].as_str().unwrap()).unwrap();
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        let _ = self.browser.kill();
        let _ = self.browser.wait();
    }
}

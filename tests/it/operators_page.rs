//! The page for operators in a real headless browser: it shows what there is, texts of clients stay texts, a
//! change asks for the token, the keyboard is enough. The tests are skipped without Chromium.

use std::path::Path;

use mq_broker::view::Query;
use mq_client::{Client, QoS, Reconnect, Subscription};
use mq_testkit::{Page, SCHEMES, TestBroker, assert_accessible, axe_script, chromium, token_file};
use mq_transport::Scheme;
use serde_json::{Value, json};

/// Client identifier that would run as a script in the page.
const HOSTILE: &str = "<img src=x onerror=window.pwned=1>\u{202e}gnp";

struct Running {
    broker: TestBroker,
    url: String,
    token: String,
    clients: Vec<(Client, Subscription)>,
    folder: tempfile::TempDir,
}

/// Starts a broker with a client of each transport, and one with a hostile name.
async fn running() -> Running {
    let folder = tempfile::tempdir().unwrap();
    let (path, token) = token_file(folder.path());
    let broker = TestBroker::start_with(|settings| {
        settings.admin.http = Some("127.0.0.1:0".parse().unwrap());
        settings.admin.token_file = Some(path);
        settings.admin.open_on_loopback = true;
    })
    .await;
    let url = format!("http://{}/", broker.broker().admin_address().unwrap());
    let mut clients = Vec::new();
    let named = SCHEMES.map(|scheme| (scheme, scheme.to_string()));
    for (scheme, id) in named.into_iter().chain([(Scheme::Tcp, HOSTILE.to_owned())]) {
        let client = broker.client(scheme, &id).reconnect(Reconnect::never());
        let client = client.build().await.unwrap();
        let messages = client.subscribe("plant/#", QoS::AtLeastOnce).await.unwrap();
        clients.push((client, messages));
    }
    let retained = mq_client::Outgoing::new("plant/<b>state</b>".try_into().unwrap(), "on");
    clients[0].0.send(retained.retain(true)).await.unwrap();
    Running {
        broker,
        url,
        token,
        clients,
        folder,
    }
}

impl Running {
    fn open(&self, chromium: &Path, url: &str) -> Page {
        Page::open(chromium, &self.folder.path().join("profile"), url)
    }
}

fn key(page: &mut Page, key: &str) {
    let text = if key == "Enter" { "\r" } else { "" };
    for kind in ["keyDown", "keyUp"] {
        let event = json!({ "type": kind, "key": key, "code": key, "text": text });
        page.call("Input.dispatchKeyEvent", &event);
    }
}

/// Checks that there is no error on the console, and no request but to the broker.
fn nothing_went_wrong(page: &mut Page, url: &str) {
    page.eval("0");
    for event in &page.events {
        let params = &event["params"];
        match event["method"].as_str().unwrap_or_default() {
            // The answer without a token is logged by the browser itself.
            "Log.entryAdded" if params["entry"]["text"].as_str().unwrap().contains("401") => {}
            "Runtime.exceptionThrown" | "Log.entryAdded" => panic!("{params}"),
            "Network.requestWillBeSent" => {
                let to = params["request"]["url"].as_str().unwrap();
                assert!(to.starts_with(url) || to.starts_with("data:"), "{to}");
            }
            _ => {}
        }
    }
    assert_eq!(page.eval("window.pwned === undefined"), true);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_page_shows_the_broker_and_changes_it_with_a_token_alone() {
    let Some(chromium) = chromium() else { return };
    let running = running().await;
    let mut page = running.open(&chromium, &running.url);
    page.until("document.getElementById('state').textContent.startsWith('version ')");
    page.until("document.querySelectorAll('#listeners tbody tr').length === 5");
    page.screenshot("operators-overview");

    // By the keyboard to the next view.
    page.eval("document.getElementById('tab-overview').focus()");
    key(&mut page, "ArrowRight");
    page.until("document.activeElement.id === 'tab-clients'");
    page.until("document.querySelectorAll('#clients tbody tr').length === 6");
    let text = page.eval("document.querySelector('#clients').textContent");
    let text = text.as_str().unwrap();
    assert!(
        text.contains("<img src=x onerror=window.pwned=1>\\u{202e}gnp"),
        "{text}"
    );
    for scheme in SCHEMES {
        assert!(text.contains(&scheme.to_string()), "{text}");
    }
    page.screenshot("operators-clients");
    page.eval(
        "document.querySelector('#clients input').value = 'quic';\
               document.querySelector('#clients input').dispatchEvent(new Event('input'))",
    );
    page.until("document.querySelectorAll('#clients tbody button.plain').length === 1");

    // A change asks first, then for the token, and then it is done.
    page.eval("[...document.querySelectorAll('#clients tbody button')].find(b => b.textContent === 'Kick').click()");
    page.until("document.querySelector('dialog').open");
    page.eval("[...document.querySelectorAll('dialog button')].find(b => b.textContent === 'Yes').click()");
    page.until("document.querySelector('dialog input[type=password]') !== null");
    let is_there = || running.broker.broker().client("quic");
    is_there().await.unwrap();
    page.screenshot("operators-token");
    let token = Value::from(running.token.as_str());
    page.eval(&format!(
        "document.querySelector('dialog input').value = {token}"
    ));
    key(&mut page, "Enter");
    page.until("document.getElementById('state').textContent === 'disconnected quic'");
    is_there().await.unwrap_err();

    for view in [
        "sessions",
        "subscriptions",
        "topics",
        "retained",
        "refusals",
        "bans",
    ] {
        page.eval(&format!("document.getElementById('tab-{view}').click()"));
        page.until(&format!("!document.getElementById('{view}').hidden"));
        page.until(&format!("document.querySelector('#{view} thead') !== null"));
        page.screenshot(&format!("operators-{view}"));
    }
    // A ban, from a form.
    page.eval("[...document.querySelectorAll('#bans button')].find(b => b.textContent.startsWith('Ban client')).click()");
    page.eval("document.querySelector('dialog input').value = 'x y'");
    key(&mut page, "Enter");
    page.until("document.querySelector('dialog input[type=number]') !== null");
    page.eval("document.querySelector('dialog input').focus()");
    key(&mut page, "Enter");
    page.until("document.querySelector('#bans tbody').textContent.includes('x y')");
    assert_eq!(
        running.broker.broker().bans(&Query::default()).items.len(),
        1
    );

    // The token is in no address, and only in this tab.
    let address = page.eval("location.href");
    assert!(!address.as_str().unwrap().contains(&running.token));
    page.scheme("dark");
    page.until("getComputedStyle(document.body).backgroundColor === 'rgb(18, 24, 31)'");
    page.screenshot("operators-dark");
    page.size(390, 844);
    page.until("document.documentElement.scrollWidth <= 390");
    page.eval("document.getElementById('tab-overview').click()");
    page.until("document.querySelectorAll('.card').length === 9");
    page.screenshot("operators-phone");
    nothing_went_wrong(&mut page, &running.url);
    drop(page);
    drop(running.clients);
    running.broker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn axe_finds_nothing_serious_in_any_view() {
    let (Some(chromium), Some(script)) = (chromium(), axe_script()) else {
        return;
    };
    let running = running().await;
    let mut page = running.open(&chromium, &running.url);
    page.until("document.querySelectorAll('#listeners tbody tr').length === 5");
    // The broker's policy lets no script of a test's in.
    page.call("Page.setBypassCSP", &json!({ "enabled": true }));
    for scheme in ["light", "dark"] {
        page.scheme(scheme);
        for view in ["overview", "clients", "topics", "retained", "bans"] {
            page.eval(&format!("document.getElementById('tab-{view}').click()"));
            page.until(&format!("document.querySelector('#{view} thead') !== null"));
            assert_accessible(&mut page, &script, &format!("{scheme}, {view}"));
        }
    }
    drop(page);
    drop(running.clients);
    running.broker.shutdown().await;
}

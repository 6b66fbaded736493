//! The page in a real headless browser, over its `DevTools` protocol: every figure is drawn, the controls work,
//! and the page makes no request. The tests are skipped without Chromium.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use mq_testkit::{Page, assert_accessible, axe_script, chromium};
use serde_json::{Value, json};

use super::{fixture, page};
use crate::{
    campaign::{claims, store::ResultSet},
    report::campaign::assemble::report,
};

fn url(file: &Path) -> String {
    format!("file://{}", file.display())
}

#[test]
fn the_page_works_in_a_browser_without_any_network() {
    let Some(chromium) = chromium() else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let set = fixture::set(folder.path());
    let claims = claims::shipped().unwrap();
    let report = report(&set.head, &set.campaigns, &set.records, &claims);
    let file = folder.path().join("report.html");
    std::fs::write(&file, page(&report)).unwrap();
    if let Some(folder) = std::env::var_os("MQ_SCREENSHOTS") {
        std::fs::copy(&file, Path::new(&folder).join("report.html")).unwrap();
    }
    let mut page = Page::open(&chromium, &folder.path().join("profile"), &url(&file));

    // Every figure is drawn, those in closed parts when they are opened.
    page.until("document.querySelectorAll('.chart[data-drawn] svg path').length > 20");
    page.screenshot("light");
    page.eval("document.querySelectorAll('details').forEach(part => { part.open = true })");
    let count = page.eval("document.querySelectorAll('.chart').length");
    assert_eq!(count, 8);
    page.until("document.querySelectorAll('.chart[data-drawn]').length === 8");
    page.until(
        "[...document.querySelectorAll('.chart')].every(c => c.querySelectorAll('svg path').length > 5)",
    );
    page.screenshot("light-open");

    // Bars: as many as there are cells, with whiskers; a log axis is another drawing, and back.
    let linear = page.drawing("c0p0");
    page.click("c0p0", "log");
    let logarithmic = page.drawing("c0p0");
    assert_ne!(linear, logarithmic);
    let pressed = "document.querySelector('[data-for=c0p0][data-do=log]').ariaPressed";
    assert_eq!(page.eval(pressed), "true");
    page.screenshot("log");
    page.click("c0p0", "log");
    assert_eq!(page.drawing("c0p0"), linear);

    told_under_the_pointer(&mut page);

    // Boxes have a split ordinate, with an abscissa for each part, until one logarithmic axis is asked for.
    let grids = "echarts.getInstanceByDom(document.querySelector('#c1p0')).getOption().grid.length";
    assert_eq!(page.eval(grids), 2);
    page.click("c1p0", "log");
    assert_eq!(page.eval(grids), 1);
    page.click("c1p0", "log");
    assert_eq!(page.eval(grids), 2);

    // Zoom, by its buttons and by the keyboard.
    page.click("c0p0", "in");
    assert_ne!(page.drawing("c0p0"), linear);
    page.eval("document.querySelector('[data-for=c0p0][data-do=reset]').focus()");
    for kind in ["keyDown", "keyUp"] {
        let key = json!({ "type": kind, "key": "Enter", "code": "Enter", "text": "\r",
            "windowsVirtualKeyCode": 13 });
        page.call("Input.dispatchKeyEvent", &key);
    }
    page.until(&shows("c0p0", &linear));

    // A distribution as a curve, and of another cell.
    let histogram = page.drawing("c0d0");
    page.click("c0d0", "cdf");
    let curve = page.drawing("c0d0");
    assert_ne!(histogram, curve);
    page.eval(
        "(s => { s.selectedIndex = 0; s.dispatchEvent(new Event('change')) })\
         (document.querySelector('select[data-for=c0d0]'))",
    );
    assert_ne!(page.drawing("c0d0"), curve);

    // The data that a button saves is the data shown.
    let downloads = folder.path().join("downloads");
    std::fs::create_dir(&downloads).unwrap();
    let allow = json!({ "behavior": "allow", "downloadPath": downloads });
    page.call("Browser.setDownloadBehavior", &allow);
    page.click("c0p0", "csv");
    let saved = downloads.join("s22-fig4-s22_wifi.csv");
    let end = Instant::now() + Duration::from_secs(20);
    let text = loop {
        match std::fs::read_to_string(&saved) {
            Ok(text) if text.lines().count() == 7 => break text,
            other => assert!(Instant::now() < end, "not saved: {other:?}"),
        }
        page.eval("0");
        std::thread::sleep(Duration::from_millis(50));
    };
    let panel = &report.campaigns[0].panels[0];
    let point = panel.series[1].points[2].as_ref().unwrap();
    let line = format!("5%,quic,6,{},", point.mean);
    assert!(text.contains(&line), "no {line} in\n{text}");

    // The dark theme has colours of its own; a phone's width needs no scrolling sideways.
    page.scheme("dark");
    page.until("getComputedStyle(document.body).backgroundColor === 'rgb(20, 23, 26)'");
    page.until(&format!("!({})", shows("c0p0", &linear)));
    page.eval("document.querySelectorAll('details').forEach(part => { part.open = false })");
    page.screenshot("dark");
    page.scheme("light");
    page.size(390, 800);
    page.until("document.querySelector('#c0p0 svg').clientWidth < 390");
    let fits = "document.documentElement.scrollWidth <= 390";
    assert_eq!(
        page.eval(fits),
        true,
        "{}",
        page.eval("document.documentElement.scrollWidth")
    );
    page.screenshot("phone");

    nothing_went_wrong(&mut page);
}

/// W20's two connections differ by a factor of a hundred, a run of DL's by as much from the others.
#[test]
fn boxes_bars_and_intervals_are_within_their_axis() {
    let Some(chromium) = chromium() else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let report = super::figures::kept("2026-11-24-papers", &["w20-fig5", "dl-fig4", "s22-fig5"]);
    let file = folder.path().join("report.html");
    std::fs::write(&file, page(&report)).unwrap();
    let mut page = Page::open(&chromium, &folder.path().join("profile"), &url(&file));
    page.until("document.querySelectorAll('.chart[data-drawn]').length >= 3");
    page.until("[...document.querySelectorAll('.chart[id*=p]')].every(c => c.dataset.drawn)");
    assert_eq!(page.eval(BEYOND), json!([]));
    nothing_went_wrong(&mut page);
}

/// In light and dark, on a desk and on a phone, with all parts closed and with all open.
#[test]
fn axe_finds_nothing_serious_in_the_page() {
    let (Some(chromium), Some(script)) = (chromium(), axe_script()) else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let set = fixture::set(folder.path());
    let mut records = set.records.clone();
    // A banner at a figure, and at the top.
    for record in records.iter_mut().rev().take(2) {
        record.outcome.error = Some("the broker ended".to_owned());
    }
    let claims = claims::shipped().unwrap();
    let report = report(&set.head, &set.campaigns, &records, &claims);
    let file = folder.path().join("report.html");
    std::fs::write(&file, page(&report)).unwrap();
    let mut page = Page::open(&chromium, &folder.path().join("profile"), &url(&file));
    page.until("document.querySelectorAll('.chart[data-drawn] svg path').length > 20");
    let open = "document.querySelectorAll('details').forEach(part => { part.open = true })";
    let close = "document.querySelectorAll('details').forEach(part => { part.open = false })";
    for scheme in ["light", "dark"] {
        page.scheme(scheme);
        for (width, height) in [(1400, 900), (390, 844)] {
            page.size(width, height);
            for (parts, state) in [(close, "closed"), (open, "open")] {
                page.eval(parts);
                // Parts are drawn once they are opened.
                std::thread::sleep(Duration::from_millis(300));
                let state = format!("{scheme}, {width} px, {state}");
                assert_accessible(&mut page, &script, &state);
            }
        }
    }
}

/// Every figure of a quick run of everything that ships, as it is kept with the project.
#[test]
fn all_figures_of_a_quick_run_are_drawn_switched_zoomed_and_saved() {
    let Some(chromium) = chromium() else {
        return;
    };
    let kept = "../../bench/runs/2026-11-21-quick";
    let set = ResultSet::load(&Path::new(env!("CARGO_MANIFEST_DIR")).join(kept)).unwrap();
    assert_eq!(set.campaigns.len(), 28);
    let report = report(
        &set.head,
        &set.campaigns,
        &set.records,
        &claims::shipped().unwrap(),
    );
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("report.html");
    std::fs::write(&file, page(&report)).unwrap();
    if let Some(folder) = std::env::var_os("MQ_SCREENSHOTS") {
        std::fs::copy(&file, Path::new(&folder).join("quick.html")).unwrap();
    }
    let mut page = Page::open(&chromium, &folder.path().join("profile"), &url(&file));
    page.eval("document.querySelectorAll('details').forEach(part => { part.open = true })");
    page.until(
        "[...document.querySelectorAll('.chart')].every(c => c.dataset.drawn !== undefined)",
    );
    page.until(
        "[...document.querySelectorAll('.chart')].every(c => c.querySelectorAll('svg path').length > 3)",
    );
    page.keep_what_is_saved();
    let mut figures = 0;
    for (number, campaign) in report.campaigns.iter().enumerate() {
        assert!(!campaign.panels.is_empty(), "{}", campaign.name);
        for (panel_number, panel) in campaign.panels.iter().enumerate() {
            let id = format!("c{number}p{panel_number}");
            let first = page.drawing(&id);
            page.click(&id, "log");
            assert_ne!(page.drawing(&id), first, "{} {id}: log", campaign.name);
            page.click(&id, "log");
            page.click(&id, "in");
            assert_ne!(page.drawing(&id), first, "{} {id}: zoom", campaign.name);
            page.click(&id, "reset");
            page.click(&id, "csv");
            let text = page.saved();
            for series in &panel.series {
                for point in series.points.iter().flatten() {
                    let part = format!(",{},{},", point.n, point.mean);
                    assert!(
                        text.contains(&part),
                        "{} {id}: no {part} in\n{text}",
                        campaign.name
                    );
                }
            }
            figures += 1;
        }
    }
    println!("{figures} figures");
    // The verdicts of a phone's page need no scrolling sideways: nothing of them is out of sight.
    page.size(390, 844);
    let hidden = "[...document.querySelectorAll('#claims .table, .claims .table')]\
         .filter(table => table.scrollWidth > table.clientWidth + 1).map(table => table.ariaLabel)";
    assert_eq!(page.eval(hidden), json!([]));
    page.size(1400, 844);
    assert_eq!(page.eval(BEYOND), json!([]));
    for width in [1400, 390] {
        page.size(width, 844);
        page.until(&format!("document.documentElement.scrollWidth <= {width}"));
        // A figure is drawn again for its new width.
        page.until(&format!("({FIT}).every(fits => fits)"));
        assert_eq!(page.eval(COLLISIONS), json!([]), "{width} px");
    }
    nothing_went_wrong(&mut page);
}

/// Script that returns, for each drawing, `true` if it is as wide as its place.
const FIT: &str = "[...document.querySelectorAll('.chart')].map(chart => \
     Math.abs(chart.querySelector('svg').clientWidth - chart.clientWidth) <= 1)";

/// Script that returns the words of figures that overlap one another or leave their figure.
const COLLISIONS: &str = "(() => {
    const found = [];
    for (const chart of document.querySelectorAll('.chart')) {
        const frame = chart.getBoundingClientRect();
        const words = [...chart.querySelectorAll('svg text')].filter(text => text.textContent.trim());
        const all = words.map(text => [text.textContent, text.getBoundingClientRect()]);
        all.forEach(([a, p], at) => {
            if (p.left < frame.left - 2 || p.right > frame.right + 2 || p.bottom > frame.bottom + 2) {
                found.push(`${chart.id}: ${a} is outside`);
            }
            for (const [b, q] of all.slice(at + 1)) {
                const across = Math.min(p.right, q.right) - Math.max(p.left, q.left);
                // Lines of one label stand close.
                const down = Math.min(p.bottom, q.bottom) - Math.max(p.top, q.top);
                if (across > 1 && down > 4) found.push(`${chart.id}: ${a} over ${b}`);
            }
        });
    }
    return found;
})()";

/// Script that returns the values of figures that leave their axis: bars, intervals, and boxes with their whiskers, first
/// as the figure stands, then with its other axis.
const BEYOND: &str = "(() => {
    const found = [];
    for (const chart of document.querySelectorAll('.chart[id*=p]')) {
        const button = document.querySelector(`[data-for=${chart.id}][data-do=log]`);
        for (const press of [true, true]) {
            const view = echarts.getInstanceByDom(chart);
            const option = view.getOption();
            const frame = view.getModel().getComponent('grid').coordinateSystem.getRect();
            const log = option.yAxis[0].type === 'log';
            for (const series of option.series.filter(one => !one.xAxisIndex)) {
                for (const row of series.data) {
                    // Outliers above a break have a grid of their own.
                    const values = option.grid.length > 1 ? row.slice(1, 6) : row.slice(1);
                    for (const value of values.filter(value => !log || value > 0)) {
                        const y = view.convertToPixel({ xAxisIndex: 0, yAxisIndex: 0 }, [0, value])[1];
                        if (!(y >= frame.y - 1 && y <= frame.y + frame.height + 1)) {
                            found.push(`${chart.id} ${log ? 'log' : ''} ${series.name}: ${value} at ${y}`);
                        }
                    }
                }
            }
            if (press && button && !button.disabled) button.click();
        }
    }
    return found;
})()";

/// Returns a script that is true if a figure's drawing equals `drawing`.
fn shows(figure: &str, drawing: &str) -> String {
    let drawing = Value::from(drawing);
    format!("document.querySelector('#{figure} svg').innerHTML === {drawing}")
}

/// Checks that the tooltip shows the value under the pointer; then moves the pointer away, and the tooltip disappears.
fn told_under_the_pointer(page: &mut Page) {
    page.eval(
        "document.querySelector('#c0p0').scrollIntoView({ block: 'center', behavior: 'instant' })",
    );
    let centre = page.eval(
        "(r => [r.x + r.width * 0.8, r.y + r.height / 2])\
         (document.querySelector('#c0p0').getBoundingClientRect())",
    );
    let over = json!({ "type": "mouseMoved", "x": centre[0], "y": centre[1] });
    page.call("Input.dispatchMouseEvent", &over);
    page.until("document.querySelector('#c0p0').textContent.includes('packet loss 5 %')");
    page.until("document.querySelector('#c0p0').textContent.includes('over runs), n 6')");
    let away = json!({ "type": "mouseMoved", "x": 1, "y": 1 });
    page.call("Input.dispatchMouseEvent", &away);
}

/// Checks that the console has no error, and that the page requests only its own file and what it makes.
fn nothing_went_wrong(page: &mut Page) {
    page.eval("0");
    for event in &page.events {
        let params = &event["params"];
        match event["method"].as_str().unwrap_or_default() {
            "Runtime.exceptionThrown" | "Log.entryAdded" => panic!("{params}"),
            "Runtime.consoleAPICalled" if params["type"] != "log" => panic!("{params}"),
            "Network.requestWillBeSent" => {
                let url = params["request"]["url"].as_str().unwrap();
                let own = ["file://", "blob:", "data:", "about:"];
                assert!(own.iter().any(|scheme| url.starts_with(scheme)), "{url}");
            }
            _ => {}
        }
    }
    let methods = page.events.iter().map(|event| &event["method"]);
    let files = methods.filter(|method| **method == "Network.requestWillBeSent");
    assert!(files.count() >= 1, "the page itself was not seen");
}

//! The page is well-formed, self-contained, and has the figures in it.

use super::*;
use crate::bench::{
    figures::Spread,
    show::{Bars, Form, Source},
};
use roxmltree::{Document, ParsingOptions};

fn example() -> String {
    let mut table = Table::new("load", ["bare", "trap"].map(String::from));
    table.section(Source::Quoted, "the paper");
    table.line("exits <a second>", [String::new(), "123,134".into()]);
    table.part("the timer's", ["0.00".into(), "2.00".into()]);
    let values = vec![Some(Spread { value: 0.6, spread: 0.0 })];
    let plot = Plot {
        title: "Figure 3".into(),
        source: Source::Modelled,
        y: "fraction".into(),
        form: Form::Bars {
            groups: vec!["netperf".into()],
            series: vec![Bars { name: "trap".into(), values }],
        },
    };
    let section = |name: &str| Section {
        name: name.into(),
        title: format!("Experiment {name}"),
        blocks: vec![
            Block::Say("a < b & c".into()),
            Block::Plots(vec![plot.clone()]),
            Block::Table(table.clone()),
        ],
    };
    page(&Page {
        title: "Report".into(),
        intro: vec!["Nothing is timed.".into()],
        failures: vec!["Apache, eli: the load generator ab died".into()],
        sections: vec![section("fig3"), section("fig4")],
        notes: vec!["kernel 6.12".into()],
    })
}

#[test]
fn the_page_is_well_formed_and_complete() {
    let text = example();
    let options = ParsingOptions { allow_dtd: true, ..ParsingOptions::default() };
    let document = Document::parse_with_options(&text, options).unwrap();
    let said: Vec<_> = document.descendants().filter_map(|n| n.text()).collect();
    for text in [
        "a < b & c",
        "exits <a second>",
        "123,134",
        "0.60",
        "kernel 6.12",
        "Apache, eli: the load generator ab died",
    ] {
        assert!(said.contains(&text), "{text} in {said:?}");
    }
    let ids: Vec<_> = document.descendants().filter_map(|n| n.attribute("id")).collect();
    assert_eq!(ids, ["fig3", "fig4"]);
    let badges =
        document.descendants().filter(|n| n.has_tag_name(("http://www.w3.org/1999/xhtml", "span")));
    let badges: Vec<_> = badges.filter_map(|n| n.text()).collect();
    assert_eq!(badges, ["modelled", "quoted", "modelled", "quoted"]);
}

#[test]
fn the_page_loads_and_runs_nothing() {
    let text = example();
    for word in ["<script", "<link", "<img", "<iframe", "src=", "url(", "@import", "javascript:"] {
        assert!(!text.contains(word), "{word}");
    }
    // The one address in it is the name of a namespace, which nobody fetches.
    let addresses = text.replace("http://www.w3.org/", "");
    assert!(!addresses.contains("http://") && !addresses.contains("https://"));
}

#[test]
fn dark_and_print_have_their_colours() {
    for word in ["prefers-color-scheme: dark", "@media print", "color-scheme: light dark"] {
        assert!(STYLE.contains(word), "{word}");
    }
    // Every colour of the plots has a name, and every name a colour in the light and the dark.
    for name in ["--bare", "--trap", "--eli-delivery", "--eli", "--direct", "--other"] {
        assert_eq!(STYLE.matches(&format!("{name}: #")).count(), 3, "{name}");
    }
    for policy in crate::bench::column::Column::ALL {
        assert!(STYLE.contains(&format!(".policy-{}", policy.label())));
    }
}

/// On a narrow screen the columns' headings are gone, and each cell shows its own.
#[test]
fn each_cell_knows_its_column() {
    let text = example();
    assert!(text.contains("<td data-column=\"trap\">123,134</td>"), "{text}");
    assert!(text.contains("<td class=\"none\" data-column=\"bare\">–</td>"), "{text}");
    assert!(text.contains("content: attr(data-column)"));
}

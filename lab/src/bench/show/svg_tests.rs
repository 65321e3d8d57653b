//! Plots are well-formed and show what they are given.

use super::*;
use crate::bench::{
    figures::Spread,
    show::{Point, Source},
};
use proptest::prelude::*;
use roxmltree::Document;

fn plot_of(form: Form) -> Plot {
    Plot {
        title: "costs <of> \"it\" & more".into(),
        source: Source::Measured,
        y: "parts".into(),
        form,
    }
}

fn bars_of(values: &[Option<(f64, f64)>]) -> Plot {
    let values = |f: f64| {
        let scaled = |v: &Option<(f64, f64)>| v.map(|(v, s)| Spread { value: f * v, spread: s });
        values.iter().map(scaled).collect::<Vec<_>>()
    };
    let series = ["bare", "trap & co"].into_iter().zip([1.0, 0.5]);
    plot_of(Form::Bars {
        groups: (0..values(1.0).len()).map(|i| format!("group {i}")).collect(),
        series: series.map(|(name, f)| Bars { name: name.into(), values: values(f) }).collect(),
    })
}

fn number_of(node: roxmltree::Node, attribute: &str) -> f64 {
    node.attribute(attribute).unwrap().parse().unwrap()
}

#[test]
fn bars_are_as_high_as_their_values() {
    let text = plot(&bars_of(&[Some((1.0, 0.1)), None, Some((0.25, 0.0))]));
    let document = Document::parse(&text).unwrap();
    let bars: Vec<_> = document
        .descendants()
        .filter(|n| n.has_tag_name("rect") && n.first_element_child().is_some())
        .collect();
    assert_eq!(bars.len(), 4);
    let height = |i: usize| number_of(bars[i], "height");
    assert!(
        (height(0) / height(1) - 2.0).abs() < 0.01 && (height(0) / height(2) - 4.0).abs() < 0.05
    );
    assert_eq!(bars[0].attribute("class"), Some("policy-bare"));
    assert_eq!(bars[1].attribute("class"), Some("series-1"));
    let said: Vec<_> = document.descendants().filter_map(|n| n.text()).collect();
    for text in ["1.00", "0.25", "0.12", "group 2", "trap & co", "parts"] {
        assert!(said.contains(&text), "{text} in {said:?}");
    }
    let errors = document.descendants().filter(|n| n.attribute("class") == Some("error"));
    assert_eq!(errors.count(), 2);
}

#[test]
fn lines_go_through_their_points() {
    let points = [(7.5, 63.0, "plain"), (60.0, 25.0, "")];
    let points = points.map(|(x, y, label)| Point { x, y, label: label.into() });
    let series = vec![Line { name: "eli".into(), points: points.into() }];
    let text = plot(&plot_of(Form::Lines { x: "cycles".into(), series }));
    let document = Document::parse(&text).unwrap();
    let circles: Vec<_> = document.descendants().filter(|n| n.has_tag_name("circle")).collect();
    assert_eq!(circles.len(), 2);
    assert!(number_of(circles[0], "cx") < number_of(circles[1], "cx"));
    assert!(number_of(circles[0], "cy") < number_of(circles[1], "cy"));
    let line = document.descendants().find(|n| n.has_tag_name("polyline")).unwrap();
    let first =
        format!("{},{} ", circles[0].attribute("cx").unwrap(), circles[0].attribute("cy").unwrap());
    assert!(line.attribute("points").unwrap().starts_with(&first));
    let said: Vec<_> = document.descendants().filter_map(|n| n.text()).collect();
    for text in ["plain", "cycles", "eli: 63.0 at 7.50", "80"] {
        assert!(said.contains(&text), "{text} in {said:?}");
    }
}

#[test]
fn steps_are_round_and_cover_the_range() {
    assert_eq!([1.0, 7.0, 63.0, 100.0, 0.03].map(step), [0.2, 2.0, 20.0, 20.0, 0.01]);
    assert_eq!(
        [(0.2, 0.2), (1.0, 0.2), (40.0, 20.0)].map(|(v, s)| tick(v, s)),
        ["0.2", "1.0", "40"]
    );
    assert_eq!(range(&bars_of(&[])), (0.0, 1.0));
    let (low, high) = range(&bars_of(&[Some((-30.0, 0.0)), Some((90.0, 10.0))]));
    assert!(low <= -30.0 && high >= 100.0);
}

#[test]
fn text_cannot_become_markup() {
    assert_eq!(escape("<a b=\"c\">&\u{1b}"), "&lt;a b=&quot;c&quot;&gt;&amp;\u{fffd}");
}

proptest! {
    /// Whatever the figures are, the plot is well-formed and stays within its frame.
    #[test]
    fn any_figures_are_drawn(
        values in proptest::collection::vec(proptest::option::of((-1e9f64..1e9, 0.0f64..1e6)), 0..6),
        points in proptest::collection::vec((any::<f64>(), -1e12f64..1e12), 0..6),
    ) {
        let text = plot(&bars_of(&values));
        let document = Document::parse(&text).unwrap();
        for bar in document.descendants().filter(|n| n.has_tag_name("rect")) {
            prop_assert!(number_of(bar, "height") >= 0.0 && number_of(bar, "y") >= 0.0);
        }
        let points = points.iter().map(|(x, y)| Point { x: *x, y: *y, label: "<".into() });
        let series = vec![Line { name: "x".into(), points: points.collect() }];
        Document::parse(&plot(&plot_of(Form::Lines { x: "x".into(), series }))).unwrap();
    }
}

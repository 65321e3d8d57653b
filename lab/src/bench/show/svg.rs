//! Plots as SVG: grouped bars with error bars, and lines. No script, no font, no colour
//! of its own: classes that the page's style gives colours to, in the light and in the dark.

use super::{Bars, Form, Line, Plot, number};
use std::fmt::{self, Write};

const WIDTH: f64 = 560.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 56.0;
const RIGHT: f64 = 12.0;
const TOP: f64 = 34.0;
const BOTTOM: f64 = 46.0;
/// Steps on the vertical axis, about.
const STEPS: f64 = 5.0;
/// A legend's entry: the patch, and a letter, about.
const PATCH: f64 = 18.0;
const LETTER: f64 = 6.3;

/// The plot as an `svg` element.
pub fn plot(plot: &Plot) -> String {
    let mut text = String::new();
    // Writing to a string can't fail.
    let _ = write(plot, &mut text);
    text
}

fn write(plot: &Plot, out: &mut String) -> fmt::Result {
    let said = format!("{} ({}); vertical axis: {}", plot.title, plot.source.label(), plot.y);
    writeln!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\">",
        escape(&said)
    )?;
    let (low, high) = range(plot);
    let y = Scale { low, high, from: HEIGHT - BOTTOM, to: TOP };
    axis(out, &y, &plot.y)?;
    match &plot.form {
        Form::Bars { groups, series } => {
            legend(out, series.iter().map(|s| s.name.as_str()))?;
            bars(out, &y, groups, series)?;
        }
        Form::Lines { x, series } => {
            legend(out, series.iter().map(|s| s.name.as_str()))?;
            lines(out, &y, x, series)?;
        }
    }
    out.push_str("</svg>\n");
    Ok(())
}

/// From values to places.
struct Scale {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl Scale {
    fn at(&self, value: f64) -> f64 {
        self.from + (value - self.low) / (self.high - self.low) * (self.to - self.from)
    }

    /// Where the steps are, at least two.
    fn ticks(&self) -> impl Iterator<Item = f64> + use<> {
        let step = step(self.high - self.low);
        let (first, count) =
            ((self.low / step).ceil() * step, ((self.high - self.low) / step).floor());
        // Adding zero makes a negative zero positive.
        (0..=count as u32).map(move |i| first + f64::from(i) * step + 0.0)
    }
}

/// A step of 1, 2 or 5 times a power of ten, of which about [`STEPS`] cover `range`.
fn step(range: f64) -> f64 {
    let raw = range / STEPS;
    let power = 10f64.powf(raw.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].into_iter().find(|s| s * power >= raw * 0.999);
    step.unwrap_or(10.0) * power
}

/// What the vertical axis covers: zero, and all that is drawn, to a whole step.
fn range(plot: &Plot) -> (f64, f64) {
    let mut all = vec![0.0];
    match &plot.form {
        Form::Bars { series, .. } => {
            let values = series.iter().flat_map(|s| s.values.iter().flatten());
            all.extend(values.flat_map(|v| [v.value, v.value + v.spread]));
        }
        Form::Lines { series, .. } => {
            all.extend(series.iter().flat_map(|s| s.points.iter().map(|p| p.y)));
        }
    }
    all.retain(|v| v.is_finite());
    let low = all.iter().copied().fold(0.0, f64::min);
    let high = all.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
    // Nothing but zeros is drawn on an axis all the same.
    if high - low < 1e-12 {
        return (0.0, 1.0);
    }
    let step = step(high - low);
    ((low / step).floor() * step, (high / step * 1.02).ceil() * step)
}

fn axis(out: &mut String, y: &Scale, label: &str) -> fmt::Result {
    let (left, right) = (LEFT, WIDTH - RIGHT);
    let step = step(y.high - y.low);
    for value in y.ticks() {
        let at = y.at(value);
        let class = if value == 0.0 { "axis" } else { "grid" };
        writeln!(
            out,
            "<line class=\"{class}\" x1=\"{left}\" x2=\"{right}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>"
        )?;
        let (x, at) = (left - 6.0, at + 4.0);
        writeln!(
            out,
            "<text class=\"tick\" text-anchor=\"end\" x=\"{x}\" y=\"{at:.1}\">{}</text>",
            tick(value, step)
        )?;
    }
    let (x, at) = (14.0, f64::midpoint(TOP, HEIGHT - BOTTOM));
    writeln!(
        out,
        "<text class=\"label\" text-anchor=\"middle\" transform=\"translate({x} {at}) rotate(-90)\">{}</text>",
        escape(label)
    )
}

/// A step's number, with the digits that tell it from the next.
fn tick(value: f64, step: f64) -> String {
    let digits = (-step.log10().floor()).clamp(0.0, 6.0) as usize;
    if value.abs() >= 10_000.0 { number(value) } else { format!("{value:.digits$}") }
}

fn legend<'a>(out: &mut String, names: impl Iterator<Item = &'a str>) -> fmt::Result {
    let mut x = LEFT;
    for (i, name) in names.enumerate() {
        writeln!(
            out,
            "<rect class=\"{}\" x=\"{x:.1}\" y=\"8\" width=\"11\" height=\"11\"/>",
            class(name, i)
        )?;
        writeln!(
            out,
            "<text class=\"key\" x=\"{:.1}\" y=\"18\">{}</text>",
            x + 15.0,
            escape(name)
        )?;
        x += PATCH + 8.0 + LETTER * name.chars().count() as f64;
    }
    Ok(())
}

fn bars(out: &mut String, y: &Scale, groups: &[String], series: &[Bars]) -> fmt::Result {
    let room = (WIDTH - LEFT - RIGHT) / groups.len().max(1) as f64;
    let width = (room * 0.84 / series.len().max(1) as f64).min(44.0);
    for (g, group) in groups.iter().enumerate() {
        let middle = LEFT + room * (g as f64 + 0.5);
        let first = middle - width * series.len() as f64 / 2.0;
        for (i, bars) in series.iter().enumerate() {
            let Some(value) = bars.values.get(g).copied().flatten() else { continue };
            let (x, zero, top) = (first + width * i as f64, y.at(0.0), y.at(value.value));
            let class = class(&bars.name, i);
            let said = format!("{group}, {}: {}", bars.name, number(value.value));
            writeln!(
                out,
                "<rect class=\"{class}\" x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\"><title>{}</title></rect>",
                x + 1.0,
                top.min(zero),
                (width - 2.0).max(1.0),
                (zero - top).abs(),
                escape(&said)
            )?;
            let (x, over) = (x + width / 2.0, y.at(value.value + value.spread));
            if value.spread > 0.0 {
                let under = y.at(value.value - value.spread);
                writeln!(
                    out,
                    "<line class=\"error\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{over:.1}\" y2=\"{under:.1}\"/>"
                )?;
            }
            let small = if width < 24.0 { " small" } else { "" };
            let at = over.min(top) - 3.0;
            writeln!(
                out,
                "<text class=\"value{small}\" text-anchor=\"middle\" x=\"{x:.1}\" y=\"{at:.1}\">{}</text>",
                number(value.value)
            )?;
        }
        writeln!(
            out,
            "<text class=\"group\" text-anchor=\"middle\" x=\"{middle:.1}\" y=\"{:.1}\">{}</text>",
            HEIGHT - BOTTOM + 18.0,
            escape(group)
        )?;
    }
    Ok(())
}

fn lines(out: &mut String, y: &Scale, label: &str, series: &[Line]) -> fmt::Result {
    let xs = || series.iter().flat_map(|s| s.points.iter().map(|p| p.x)).filter(|x| x.is_finite());
    let (low, high) = (xs().fold(0.0, f64::min), xs().fold(0.0, f64::max));
    let high = if high > low { high } else { low + 1.0 };
    let x = Scale { low, high, from: LEFT + 8.0, to: WIDTH - RIGHT - 28.0 };
    let bottom = HEIGHT - BOTTOM;
    let x_step = step(high - low);
    for value in x.ticks() {
        let at = x.at(value);
        writeln!(
            out,
            "<text class=\"tick\" text-anchor=\"middle\" x=\"{at:.1}\" y=\"{:.1}\">{}</text>",
            bottom + 16.0,
            tick(value, x_step)
        )?;
    }
    let middle = f64::midpoint(LEFT, WIDTH - RIGHT);
    writeln!(
        out,
        "<text class=\"label\" text-anchor=\"middle\" x=\"{middle:.1}\" y=\"{:.1}\">{}</text>",
        HEIGHT - 8.0,
        escape(label)
    )?;
    for (i, line) in series.iter().enumerate() {
        let class = class(&line.name, i);
        let points: Vec<_> =
            line.points.iter().filter(|p| p.x.is_finite() && p.y.is_finite()).collect();
        let path: Vec<_> =
            points.iter().map(|p| format!("{:.1},{:.1}", x.at(p.x), y.at(p.y))).collect();
        writeln!(out, "<polyline class=\"line {class}\" points=\"{}\"/>", path.join(" "))?;
        for p in points {
            let (at, high) = (x.at(p.x), y.at(p.y));
            let said = format!("{}: {} at {}", line.name, number(p.y), number(p.x));
            writeln!(
                out,
                "<circle class=\"{class}\" cx=\"{at:.1}\" cy=\"{high:.1}\" r=\"3.5\"><title>{}</title></circle>",
                escape(&said)
            )?;
            if !p.label.is_empty() {
                // To the side where there is room.
                let (anchor, beside) =
                    if at > 0.6 * WIDTH { ("end", at - 6.0) } else { ("start", at + 6.0) };
                writeln!(
                    out,
                    "<text class=\"value\" text-anchor=\"{anchor}\" x=\"{beside:.1}\" y=\"{:.1}\">{}</text>",
                    high - 5.0,
                    escape(&p.label)
                )?;
            }
        }
    }
    Ok(())
}

/// The class of a series: a policy's own, or the next in turn.
fn class(name: &str, index: usize) -> String {
    let policy = super::super::column::Column::ALL.iter().map(|p| p.label()).find(|l| *l == name);
    policy.map_or_else(|| format!("series-{}", index % 4), |l| format!("policy-{l}"))
}

/// Text for between tags and in attributes.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            // No other control character may be in a page.
            c if c.is_control() && c != '\n' && c != '\t' => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
#[path = "svg_tests.rs"]
mod tests;

//! The report as one HTML page: style and plots are in it, it loads nothing and runs
//! nothing. It is well-formed XML too, so that a parser can check it.

use super::{Block, Plot, Row, Table, svg};
use svg::escape;

const STYLE: &str = include_str!("style.css");

/// A page.
#[derive(Clone, Debug, Default)]
pub struct Page {
    /// Its heading.
    pub title: String,
    /// What to know before reading figures.
    pub intro: Vec<String>,
    /// What went wrong, a sentence each.
    pub failures: Vec<String>,
    /// One for each experiment.
    pub sections: Vec<Section>,
    /// How it was made.
    pub notes: Vec<String>,
}

/// An experiment's part of a page.
#[derive(Clone, Debug)]
pub struct Section {
    /// Its name on the command line.
    pub name: String,
    /// Its heading.
    pub title: String,
    /// What is in it.
    pub blocks: Vec<Block>,
}

/// The page as text.
pub fn page(page: &Page) -> String {
    let mut out = String::from(
        "<!DOCTYPE html>\n<html lang=\"en\" xmlns=\"http://www.w3.org/1999/xhtml\">\n<head>\n<meta charset=\"utf-8\"/>\n",
    );
    out.push_str("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n");
    out.push_str(&element("title", &page.title));
    out.push_str(&format!("<style>\n{STYLE}</style>\n</head>\n<body>\n"));
    out.push_str(&element("h1", &page.title));
    for sentence in &page.intro {
        out.push_str(&element("p", sentence));
    }
    if page.sections.len() > 1 {
        let links = page
            .sections
            .iter()
            .map(|s| format!("<a href=\"#{}\">{}</a>", escape(&s.name), escape(&s.title)));
        out.push_str(&format!("<nav>{}</nav>\n", links.collect::<Vec<_>>().join(" ")));
    }
    list(&mut out, "What failed", "failures", &page.failures);
    for section in &page.sections {
        out.push_str(&format!("<section id=\"{}\">\n", escape(&section.name)));
        out.push_str(&element("h2", &section.title));
        section.blocks.iter().for_each(|b| block(&mut out, b));
        out.push_str("</section>\n");
    }
    list(&mut out, "How it was made", "notes", &page.notes);
    out.push_str("</body>\n</html>\n");
    out
}

fn element(name: &str, text: &str) -> String {
    format!("<{name}>{}</{name}>\n", escape(text))
}

fn list(out: &mut String, title: &str, class: &str, items: &[String]) {
    if items.is_empty() {
        return;
    }
    out.push_str(&format!("<section class=\"{class}\">\n"));
    out.push_str(&element("h2", title));
    out.push_str("<ul>\n");
    items.iter().for_each(|item| out.push_str(&element("li", item)));
    out.push_str("</ul>\n</section>\n");
}

fn block(out: &mut String, block: &Block) {
    match block {
        Block::Say(sentence) => out.push_str(&element("p", sentence)),
        Block::Table(table) => out.push_str(&self::table(table)),
        Block::Plots(plots) => {
            out.push_str("<div class=\"plots\">\n");
            plots.iter().for_each(|p| out.push_str(&figure(p)));
            out.push_str("</div>\n");
        }
        Block::Remarks(sentences) => {
            let paragraph = |s: &String| format!("<p class=\"remark\">{}</p>\n", escape(s));
            out.extend(sentences.iter().map(paragraph));
        }
    }
}

fn figure(plot: &Plot) -> String {
    let source = plot.source.label();
    format!(
        "<figure class=\"{source}\">\n<figcaption>{} {}</figcaption>\n<div class=\"plot\">{}</div></figure>\n",
        badge(source),
        escape(&plot.title),
        svg::plot(plot)
    )
}

fn badge(source: &str) -> String {
    format!("<span class=\"badge {source}\">{source}</span>")
}

fn table(table: &Table) -> String {
    let mut out = String::from("<div class=\"table\"><table>\n<thead><tr>");
    out.push_str(&format!("<th scope=\"col\">{}</th>", escape(&table.title)));
    for column in &table.columns {
        out.push_str(&format!("<th scope=\"col\">{}</th>", escape(column)));
    }
    out.push_str("</tr></thead>\n<tbody>\n");
    for row in &table.rows {
        match row {
            Row::Section(source, note) => out.push_str(&format!(
                "<tr class=\"section\"><th colspan=\"{}\">{} {}</th></tr>\n",
                table.columns.len() + 1,
                badge(source.label()),
                escape(note)
            )),
            Row::Line { depth, label, cells } => {
                let class = if *depth > 0 { " class=\"part\"" } else { "" };
                out.push_str(&format!("<tr{class}><th scope=\"row\">{}</th>", escape(label)));
                for (column, cell) in table.columns.iter().zip(cells) {
                    let (class, text) = if cell.is_empty() {
                        (" class=\"none\"", "–")
                    } else {
                        ("", cell.as_str())
                    };
                    let (column, text) = (escape(column), escape(text));
                    out.push_str(&format!("<td{class} data-column=\"{column}\">{text}</td>"));
                }
                out.push_str("</tr>\n");
            }
        }
    }
    out.push_str("</tbody>\n</table></div>\n");
    out
}

#[cfg(test)]
#[path = "html_tests.rs"]
mod tests;

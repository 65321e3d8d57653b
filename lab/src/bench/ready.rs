//! What every experiment sees to before it measures: that its files can be written, and that
//! guests and plugin are there and count right.

use super::{guest::Kit, plugin_check, progress::Step, workload::Workload};
use anyhow::{Result, bail};
use exitless::{
    context::Context,
    output::{self, Folder, Output},
    qemu::Iommu,
};
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Where pages go.
pub const FOLDER: &str = "report";

/// Where figures go besides the terminal.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct Files {
    /// Write the rows as JSON to this file
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write the page to this file, not to report/NAME.html
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

impl Files {
    /// The files of the experiment of this name: what can't be written is refused now, not when
    /// everything has been measured.
    pub fn claim(&self, name: &str) -> Result<Claimed> {
        let page = self.page(name);
        if let Some(json) = &self.json {
            let same = std::path::absolute(json).ok() == std::path::absolute(&page).ok();
            if same {
                bail!("--json: {} is the page's file; give another file", json.display());
            }
            output::apart_from("--json", json, [(page.clone(), "the page's file".to_owned())])?;
        }
        let json = self.json.as_deref().map(Output::claim).transpose()?;
        let folder = match self.html {
            Some(_) => None,
            None => Some(Folder::claim(Path::new(FOLDER))?),
        };
        let html = Output::claim(&page)?;
        Ok(Claimed { json, html, page, _folder: folder })
    }

    /// Where the page goes.
    fn page(&self, name: &str) -> PathBuf {
        self.html.clone().unwrap_or_else(|| Path::new(FOLDER).join(format!("{name}.html")))
    }
}

/// The files of an experiment, which can be written.
pub struct Claimed {
    json: Option<Output>,
    html: Output,
    page: PathBuf,
    /// Goes last: a folder that was made and stays empty goes, too.
    _folder: Option<Folder>,
}

impl Claimed {
    /// Writes the page, and the rows if they are wanted, and says where the page is.
    pub fn write(self, rows: &impl Serialize, page: &str) -> Result<()> {
        if let Some(json) = self.json {
            json.write_json(rows)?;
        }
        self.html.write(page)?;
        println!("The page: {}", self.page.display());
        Ok(())
    }
}

/// The guests, and a plugin that is known to count right on this emulator.
pub fn prepare(cx: &Context, iommu: Iommu, workloads: &[Workload]) -> Result<Kit> {
    let kit = Kit::make(cx, iommu, workloads.iter().copied())?;
    let step = Step::begin("counting plugin against a program of known length".into());
    let checked = plugin_check::run(cx, &kit);
    step.end(if checked.is_ok() { "exact" } else { "failed" });
    checked.map(|()| kit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use exitless::arguments::of_line;
    use std::fs;

    #[test]
    fn every_experiment_writes_a_page() {
        let folder = tempfile::tempdir().unwrap();
        let [page, rows] = ["page.html", "rows.json"].map(|name| folder.path().join(name));
        let line = format!("--html {} --json {}", page.display(), rows.display());
        let files: Files = of_line(&line).unwrap();
        files.claim("fig3").unwrap().write(&[1, 2], "<html/>").unwrap();
        assert_eq!(fs::read_to_string(page).unwrap(), "<html/>");
        assert_eq!(fs::read_to_string(rows).unwrap(), "[\n  1,\n  2\n]\n");
        let line = format!("--html {0} --json {0}", folder.path().join("one").display());
        let error = of_line::<Files>(&line).unwrap().claim("fig3").err().unwrap().to_string();
        assert!(error.ends_with("one is the page's file; give another file"), "{error}");
        // Unless it is told where, into the folder of `bench all`, which goes if nothing comes of
        // it.
        let named = Files::default().page("fig3");
        assert_eq!(named, Path::new("report/fig3.html"));
    }
}

//! `exitless package`: the daemon as a Debian package, by the checkout's recipe.

use crate::{context::Context, helper, say::print};
use anyhow::{Context as _, Result, bail};
use std::{fs, path::PathBuf, process::Command};

/// The recipe, in the checkout.
const RECIPE: &str = "daemon/debian/build";

/// The daemon as the checkout's script builds it, below the target directory: static.
pub const PROGRAM: &str = "x86_64-unknown-linux-gnu/io/exitless-io";

/// Pack the daemon (exitless io) as a Debian package
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  exitless package
  exitless package -o exitless-io.deb && sudo apt install ./exitless-io.deb

The package has the program, which needs nothing of the system, systemd's units, the manual, and
/etc/exitless/io.toml, which says what is served.")]
pub struct Args {
    /// The file that is made
    #[arg(short, long, value_name = "FILE", default_value = "exitless-io.deb")]
    output: PathBuf,
}

/// Makes it.
///
/// # Errors
///
/// In a sentence, if the daemon isn't built or the recipe fails; what it says is shown before.
pub fn package(args: &Args, cx: &Context) -> Result<()> {
    let Some(name) = args.output.to_str().filter(|name| name.ends_with(".deb")) else {
        bail!("{} doesn't end in .deb", args.output.display());
    };
    let program = cx.target.join(PROGRAM);
    if !program.is_file() {
        bail!("the daemon isn't built; start this command by the checkout's script `exitless`");
    }
    let mut recipe = Command::new(cx.root.join(RECIPE));
    recipe.arg(program).arg(&args.output);
    helper::run(&mut recipe, name, cx)?;
    let bytes = fs::metadata(&args.output).with_context(|| format!("{name} isn't there"))?.len();
    print(format_args!("{name}: {} KiB\n", bytes >> 10))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_name_than_a_packages_is_refused() {
        let args = Args { output: "exitless.rpm".into() };
        let error = package(&args, &Context::for_tests()).unwrap_err().to_string();
        assert_eq!(error, "exitless.rpm doesn't end in .deb");
    }
}

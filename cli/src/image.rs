//! `exitless image`: a file that a machine boots from, or the boot image alone, for a boot loader
//! or for QEMU by hand.

use crate::{
    bootable,
    context::Context,
    load,
    output::{self, Output},
    say::print,
    signing::Signature,
};
use anyhow::{Result, bail};
use plan::Shown;
use std::path::{Path, PathBuf};

const EXAMPLES: &str = "\
Examples:
  exitless image vm.toml -o exitless.img      a stick for a machine with UEFI
  exitless image vm.toml -o exitless.iso      a stick or a CD, for BIOS and UEFI
  exitless image vm.toml -o exitless.efi      a program for a TFTP server
  exitless image vm.toml -o exitless.efi --sign db.key --certificate db.pem
  exitless image --without-plan -o look.img   one that tells what a machine has

What is made follows from the name; --format says it for other names. Write a stick with
  dd if=exitless.img of=/dev/sdX bs=4M conv=fsync
where /dev/sdX is the whole stick (lsblk names it), and all that is on it is lost. See it first on
the emulated machine: `exitless run vm.toml --boot uefi` starts the same.

A name that ends in .plan gives the boot image alone, which a boot loader hands to the hypervisor as
its one module. By hand, on the machine that `exitless run` would make (QEMU 10.2 or newer):
  qemu-system-x86_64 -machine q35 -cpu max -smp 2 -m 2G -nodefaults \\
      -display none -device amd-iommu,intremap=on,xtsup=on,dma-remap=on \\
      -serial stdio -kernel HYPERVISOR -initrd boot.plan
HYPERVISOR is target/x86_64-unknown-none/image/hypervisor in the checkout, once a run has built it.
What the serial line carries is framed: `exitless run` reads it, and `check --machine`.";

/// Pack a plan and its kernels into a file that a machine boots from.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = crate::help::flow(EXAMPLES))]
pub struct Args {
    /// The plan
    #[arg(value_name = "VM.TOML", conflicts_with = "without_plan")]
    file: Option<PathBuf>,
    /// No plan: the hypervisor starts and tells what the machine has, for `check --machine`
    #[arg(long)]
    without_plan: bool,
    /// Where to write it
    #[arg(long, short, value_name = "FILE")]
    output: PathBuf,
    /// What to make, if the file's name doesn't say it: efi, img, iso or plan
    #[arg(long, value_name = "FORMAT", value_enum, hide_possible_values = true)]
    format: Option<Format>,
    /// Sign it with this private key, for Secure Boot
    #[arg(long, value_name = "KEY.PEM", requires = "certificate")]
    sign: Option<PathBuf>,
    /// The key's certificate, which the machine's firmware knows
    #[arg(long, value_name = "CERT.PEM", requires = "sign")]
    certificate: Option<PathBuf>,
}

/// What is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    /// A UEFI program.
    Efi,
    /// A disk with it.
    Img,
    /// A CD and disk that GRUB starts.
    Iso,
    /// The boot image.
    Plan,
}

/// Makes the file.
pub fn image(args: &Args, cx: &Context) -> Result<()> {
    let format = args.format()?;
    let plan = args.file.as_ref().map(|file| load::plan(file)).transpose()?;
    let files = plan.iter().flat_map(load::inputs);
    let inputs = args.file.iter().map(|file| (file.clone(), "the plan".to_owned())).chain(files);
    output::apart_from("--output", &args.output, inputs)?;
    let output = Output::claim(&args.output)?;
    let signature = args.signature(format)?;
    if let Some(signature) = &signature {
        signature.check(cx)?;
    }
    let image = match &plan {
        Some(plan) => Some(plan::image::build(plan)?),
        None if args.without_plan && format == Format::Plan => {
            bail!("--without-plan leaves nothing for a boot image; efi, img and iso can be made")
        }
        None if args.without_plan => None,
        None => bail!(
            "what is to be packed? Give a plan, as in `exitless image vm.toml -o exitless.img`, or --without-plan for the hypervisor alone"
        ),
    };
    let program = || bootable::program(cx, image.as_deref(), signature.as_ref());
    let made = match format {
        Format::Efi => program()?,
        Format::Img => media::disk::with_program(&program()?)?,
        Format::Iso => bootable::iso(cx, image.as_deref())?,
        Format::Plan => image.unwrap_or_default(),
    };
    output.write(&made)?;
    let (path, what) = (args.output.display(), format.label());
    print(format_args!("{path}: {} bytes, {what}\n", made.len()))
}

impl Args {
    fn format(&self) -> Result<Format> {
        if let Some(format) = self.format {
            return Ok(format);
        }
        let ending = self.output.extension().unwrap_or_default().to_string_lossy().to_lowercase();
        match ending.as_str() {
            "efi" => Ok(Format::Efi),
            "img" => Ok(Format::Img),
            "iso" => Ok(Format::Iso),
            "plan" => Ok(Format::Plan),
            _ if self.output.is_dir() => {
                bail!("{} can't be written: it is a folder", self.output.display())
            }
            _ => bail!(
                "what is `{}` to be? A name ends in .img (a disk for UEFI), .iso (for BIOS and UEFI), .efi (a UEFI program) or .plan (the boot image alone), or --format says it",
                Shown(&name(&self.output))
            ),
        }
    }

    fn signature(&self, format: Format) -> Result<Option<Signature>> {
        let (Some(key), Some(certificate)) = (self.sign.clone(), self.certificate.clone()) else {
            return Ok(None);
        };
        match format {
            Format::Efi | Format::Img => Ok(Some(Signature { key, certificate })),
            Format::Iso => bail!(
                "--sign: GRUB starts the hypervisor of an ISO, and firmware checks only GRUB; .efi and .img can be signed"
            ),
            Format::Plan => {
                bail!("--sign: a boot image is no program; .efi and .img can be signed")
            }
        }
    }
}

impl Format {
    fn label(self) -> &'static str {
        match self {
            Format::Efi => "a UEFI program: for a TFTP server, or \\EFI\\BOOT\\BOOTX64.EFI",
            Format::Img => "a disk for machines with UEFI: write it to a stick with dd",
            Format::Iso => "a CD for BIOS and UEFI: burn it, or write it to a stick with dd",
            Format::Plan => "the boot image alone: the one module of the hypervisor",
        }
    }
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::of_line;

    fn line(text: &str) -> Args {
        of_line(text).unwrap()
    }

    #[test]
    fn the_name_says_what_is_made_and_the_option_says_it_better() {
        let format = |text: &str| line(text).format().map_err(|error| error.to_string());
        for (text, made) in [
            ("vm.toml -o a.efi", Format::Efi),
            ("vm.toml -o A.IMG", Format::Img),
            ("vm.toml -o a.b.iso", Format::Iso),
            ("vm.toml -o boot.plan", Format::Plan),
            ("vm.toml -o boot.img --format plan", Format::Plan),
            ("vm.toml -o /dev/sdx --format img", Format::Img),
        ] {
            assert_eq!(format(text), Ok(made), "{text}");
        }
        for text in ["vm.toml -o boot", "vm.toml -o folder/boot.bin", "vm.toml -o .img"] {
            let error = format(text).unwrap_err();
            let told = error.contains("` to be? A name ends in .img (a disk for UEFI), .iso");
            assert!(told && !error.contains("folder"), "{error}");
        }
    }

    #[test]
    fn a_signature_is_for_what_firmware_checks() {
        let pair = "--sign k --certificate c";
        let signed = |file: &str, format| {
            let args = line(&format!("vm.toml -o {file} {pair}"));
            args.signature(format).map(|s| s.is_some()).map_err(|error| error.to_string())
        };
        assert_eq!(signed("a.efi", Format::Efi), Ok(true));
        assert_eq!(signed("a.img", Format::Img), Ok(true));
        assert!(signed("a.iso", Format::Iso).unwrap_err().contains("firmware checks only GRUB"));
        assert!(signed("a.plan", Format::Plan).unwrap_err().contains("is no program"));
        assert!(line("vm.toml -o a.iso").signature(Format::Iso).unwrap().is_none());
        assert!(
            of_line::<Args>("vm.toml -o a.efi --sign k").unwrap_err().contains("--certificate")
        );
        assert!(of_line::<Args>("vm.toml --without-plan -o a.efi").is_err());
    }

    #[test]
    fn nothing_to_pack_is_told_and_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let told = |format: &str, more: &str| {
            let path = folder.path().join(format!("a.{format}"));
            let args = line(&format!("-o {} {more}", path.display()));
            let error = image(&args, &Context::for_tests()).unwrap_err().to_string();
            assert_eq!(folder.path().read_dir().unwrap().count(), 0);
            error
        };
        assert!(told("img", "").contains("what is to be packed? Give a plan, as in"));
        assert!(told("plan", "--without-plan").contains("leaves nothing for a boot image"));
        assert!(told("efi", "--without-plan --sign k --certificate c").contains("--sign"));
    }
}

# Debian packages without root and without installing them, for the recipes in this
# folder and that of QEMU, which read this file with `.` after setting `out` (a folder of
# theirs, absolute) and, before `packages`, `suites` (one or more of the mirror's, the first
# being the one preferred); `made` is what they make, where that isn't a guest.
#
# Nothing is installed: apt works on a state of its own below $out and checks Debian's
# signatures. Packages come from the machine's own Debian mirror, or deb.debian.org on
# another distribution. Sets `distribution`, `mirror`; `packages` must run before apt is used.

log=$out/log
# One at a time: another one that runs makes what this one needs.
exec 9>"$out/lock"
flock 9

say() { echo "==> $*"; }
fail() {
    rm -f "$out"/apt/ready-* # the lists may be old
    echo "${made:-guest}: $*" >&2
    exit 1
}
# Runs quietly; when it fails, says what couldn't be done and where the details are.
try() {
    what=$1
    shift
    "$@" >>"$log" 2>&1 || fail "$what failed ($(tail -n 1 "$log")); all of it is in $log"
}
# need TOOL...: all of them are there.
need() {
    for tool in "$@"; do
        command -v "$tool" >/dev/null ||
            fail "$tool is missing; it is needed to make the ${made:-guest} (Debian: apt-get install apt dpkg gcc make libc6-dev xz-utils)"
    done
}

keyring=/usr/share/keyrings/debian-archive-keyring.gpg
distribution=$(. /etc/os-release && echo "${ID:-} ${VERSION_ID:-}")

find_mirror() {
    [ -r "$keyring" ] || fail "$keyring is missing; install the package debian-archive-keyring"
    mirror=${EXITLESS_DEBIAN_MIRROR:-}
    if [ -z "$mirror" ]; then
        case $distribution in
        debian*) mirror=$(apt-get indextargets --format '$(RELEASE) $(REPO_URI)' 'Created-By: Packages' 2>/dev/null |
            sed -n "s/^$(. /etc/os-release && echo "${VERSION_CODENAME:-}") //p" | head -n 1) ;;
        esac
    fi
    mirror=${mirror:-http://deb.debian.org/debian/}
}

# Reads the package lists of $suites, once.
packages() {
    ready=$out/apt/ready-$(echo "$suites" | tr ' ' -)
    [ -e "$ready" ] || find_mirror # by the machine's own apt
    APT_CONFIG=$out/apt/apt.conf
    export APT_CONFIG
    if [ -e "$ready" ]; then
        mirror=$(sed -n 's/^deb .*\] \([^ ]*\) .*/\1/p' "$out/apt/sources.list" | head -n 1)
        return
    fi
    say "package lists of Debian $suites from $mirror"
    rm -rf "$out/apt"
    mkdir -p "$out/apt/lists/partial" "$out/apt/cache/archives/partial"
    for one in $suites; do
        echo "deb [signed-by=$keyring] $mirror $one main"
        case $one in *-backports) ;; *) echo "deb-src [signed-by=$keyring] $mirror $one main" ;; esac
    done >"$out/apt/sources.list"
    cat >"$out/apt/apt.conf" <<CONF
Dir::State "$out/apt";
Dir::State::status "/dev/null";
Dir::Cache "$out/apt/cache";
Dir::Etc::SourceList "$out/apt/sources.list";
Dir::Etc::SourceParts "/dev/null";
Dir::Etc::Preferences "/dev/null";
Dir::Etc::PreferencesParts "/dev/null";
Acquire::Languages "none";
APT::Architecture "amd64";
APT::Architectures "amd64";
APT::Sandbox::User "root";
CONF
    try "reading the package lists of $mirror" apt-get update --error-on=any
    touch "$ready"
}

# fetch DIRECTORY PACKAGE...: unpacks each PACKAGE (name or name=version) into DIRECTORY.
fetch() {
    into=$1
    shift
    rm -rf "$out/fetch"
    mkdir -p "$out/fetch" "$into"
    (cd "$out/fetch" && try "downloading $*" apt-get download "$@")
    for file in "$out"/fetch/*.deb; do
        try "unpacking $(basename "$file")" dpkg-deb -x "$file" "$into"
    done
    rm -rf "$out/fetch"
}

# version PACKAGE: of the one that `fetch` takes.
version() { apt-cache show --no-all-versions "$1" | sed -n 's/^Version: //p' | head -n 1; }

# modules FROM BASE NAME...: the modules of these names out of FROM (…/lib/modules/VERSION of
# $package), what they depend on, and so on, unpacked below BASE, where `modprobe` finds them.
modules() {
    from=$1 base=$2
    shift 2
    to=$base/lib/modules/$(basename "$from")
    mkdir -p "$to"
    cp "$from/modules.order" "$from/modules.builtin" "$from/modules.builtin.modinfo" "$to"
    wanted=$*
    while [ -n "$wanted" ]; do
        next=
        for module in $wanted; do
            [ ! -e "$to/$module.ko" ] || continue
            file=$(find "$from" -name "$(echo "$module" | sed 's/[-_]/[-_]/g').ko*" | head -n 1)
            [ -n "$file" ] || fail "$package has no module $module"
            case $file in *.xz) xz -dc "$file" ;; *) cat "$file" ;; esac >"$to/$module.ko" ||
                fail "the module $module can't be unpacked"
            next="$next $(strings "$to/$module.ko" | sed -n 's/^depends=//p' | tr , ' ')"
        done
        wanted=$(echo $next)
    done
    try "listing the modules" "$busybox" depmod -b "$base" "$(basename "$from")"
}

# pack DIRECTORY FILE: an initramfs, not compressed: under emulation copying some MB is
# faster than decompressing fewer.
pack() {
    (cd "$1" && find . | LC_ALL=C sort | "$busybox" cpio -o -H newc -R 0:0 >"$2" 2>>"$log") ||
        fail "packing $2 failed; see $log"
}

# Installs what a fresh Debian or Ubuntu lacks. Sourced by ./run and ./test.

# Debian keeps nginx where only root looks.
PATH="$PATH:/usr/sbin:/sbin"

say() {
    printf '%s\n' "$*"
}

die() {
    printf '%s: %s\n' "${0##*/}" "$*" >&2
    exit 1
}

has() {
    command -v "$1" >/dev/null 2>&1
}

# need COMMAND=PACKAGE...: installs the packages of those commands that are missing.
need() {
    local pair missing=()
    for pair in "$@"; do
        has "${pair%%=*}" || missing+=("${pair#*=}")
    done
    [ ${#missing[@]} -eq 0 ] || install_packages "${missing[@]}"
}

install_packages() {
    local as_root=()
    local command="apt-get update && apt-get install -y --no-install-recommends $*"
    has apt-get || die "please install: $*"
    if [ "$(id -u)" -ne 0 ]; then
        if ! has sudo || ! sudo -n true 2>/dev/null; then
            die "missing packages. Please run as root:  $command"
        fi
        as_root=(sudo -n)
    fi
    say "installing $* with apt"
    # No question may be asked: no one answers it.
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get update -qq >/dev/null ||
        say "apt-get update failed; trying with the lists that are there"
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -qq --no-install-recommends "$@" >/dev/null ||
        die "apt could not install $*. Please run as root:  $command"
    # The tests start an nginx of their own; the package's one must not hold port 80.
    case " $* " in
    *" nginx"*) [ ! -d /run/systemd/system ] || "${as_root[@]}" systemctl disable -q --now nginx ;;
    esac
}

# cargo_is_at_least VERSION
cargo_is_at_least() {
    printf '%s\n' "$1" "$(cargo --version | cut -d' ' -f2)" | sort -CV
}

# need_rust COMPONENT...: the toolchain that rust-toolchain.toml names, with these components.
need_rust() {
    local toolchain component missing=0
    toolchain=$(sed -n 's/^channel = "\(.*\)"/\1/p' rust-toolchain.toml)
    if [ -f "${HOME:-}/.cargo/env" ]; then . "$HOME/.cargo/env"; fi
    has cargo || die "no cargo. Please install rustup, as https://rustup.rs says, and try again."
    cargo --version >/dev/null 2>&1 || missing=1
    for component in "$@"; do
        cargo "$component" --version >/dev/null 2>&1 || missing=1
    done
    # rustup's cargo follows the file by itself; another one ignores it.
    has rustup || cargo_is_at_least "$toolchain" || missing=1
    [ $missing -eq 1 ] || return 0
    has rustup || die "this needs Rust $toolchain${*:+ with $*}, and there is $(cargo --version).
  Please install rustup, as https://rustup.rs says, and try again."
    say "installing Rust $toolchain with rustup"
    rustup toolchain install "$toolchain" --profile minimal -c rustfmt -c clippy ||
        die "rustup could not install Rust $toolchain; is there a network?"
}

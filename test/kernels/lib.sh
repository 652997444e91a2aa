# Shared by the scripts of this directory: where things are kept, and how they say what they do.
# shellcheck shell=bash

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
REPO=$(cd "$HERE/../.." && pwd)
CACHE=${WEFT_KERNELS:-${XDG_CACHE_HOME:-$HOME/.cache}/weft/kernels}
TREE=$CACHE/tree # unpacked Debian packages: kernels, their headers, a compiler; a chroot

say() { echo "kernels: $*" >&2; }
die() { say "$*"; exit 1; }

need_root() { [ "$(id -u)" -eq 0 ] || die "needs root: unpacks a chroot, and the VM's root is this machine's"; }

# in_tree COMMAND…: in the unpacked tree, in a mount namespace of its own, so that nothing stays mounted.
in_tree() {
  unshare --mount --propagation private bash -c '
    mkdir -p "$1"/{proc,dev,tmp} && mount --rbind /dev "$1/dev" && mount -t proc proc "$1/proc" || exit 1
    tree=$1; shift; exec chroot "$tree" /usr/bin/env -i PATH=/usr/sbin:/usr/bin HOME=/ LC_ALL=C "$@"' in_tree "$TREE" "$@"
}

# modules_of RELEASE: where the modules of that kernel are.
modules_of() { echo "$TREE/usr/lib/modules/$1"; }

# kernel_of RELEASE: the file that QEMU boots.
kernel_of() {
  local file
  for file in "$(modules_of "$1")/vmlinuz" "$TREE/boot/vmlinuz-$1"; do
    [ ! -e "$file" ] || { echo "$file" && return; }
  done
  die "no vmlinuz for $1 below $TREE"
}

# first_modules RELEASE DIRECTORY NAME…: modules with all that they need, unpacked, named in the order in which to load them.
first_modules() {
  local release=$1 directory=$2 name file n=100
  shift 2
  for name in "$@"; do
    modprobe -d "$TREE/usr" -S "$release" --show-depends "$name" || die "Linux $release has no module $name"
  done | sed -n 's/^insmod \([^ ]*\).*/\1/p' | awk '!seen[$0]++' | while read -r file; do
    unpacked "$file" >"$directory/$((n++)).ko"
  done
}

unpacked() {
  case $1 in
  *.xz) xz -dc "$1" ;;
  *.zst) zstd -qdc "$1" ;;
  *) cat "$1" ;;
  esac
}

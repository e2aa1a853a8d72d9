#!/bin/sh
# Tests lofs beside this file, with real loop devices and mounts: as root,
# sh test.sh [SHELL]
set -eu

here=$(cd "$(dirname "$0")" && pwd)
shell=${1:-sh}
work=$(mktemp -d)
export LOFS_POOL="$work/pool"
# As a kubelet's, with the volume's name at the end.
dir=$work/plugins/kubernetes.io/flexvolume/example.com/lofs/mounts/pv1
trap 'umount "$dir" 2>/dev/null || :; losetup --noheadings --output NAME,BACK-FILE | awk -v p="$LOFS_POOL/" "index(\$2, p) == 1 { print \$1 }" | xargs -r losetup --detach; rm -rf --one-file-system "$work"' EXIT

# want STATUS ARGUMENT... calls the driver: one JSON object of that status on
# standard output, nothing on the other, and the exit code that goes with it.
want() {
	status=$1 code=0
	shift
	"$shell" "$here/lofs" "$@" >"$work/out" 2>"$work/err" || code=$?
	[ ! -s "$work/err" ] || stop "$* wrote to standard error: $(cat "$work/err")"
	[ "$(jq -rs 'map(.status) | join(" and ")' "$work/out")" = "$status" ] || stop "$* answered $(cat "$work/out"), not $status"
	[ "$status" = Success ] && expected=0 || expected=1
	[ "$code" = "$expected" ] || stop "$* ended with $code"
}
stop() {
	printf 'FAIL: %s\n' "$1" >&2
	exit 1
}
said() { jq -r "$1" "$work/out"; }
at() { findmnt --noheadings --output "$1" --mountpoint "$dir"; }
devices() { losetup --noheadings --output NAME --associated "$LOFS_POOL/db.img"; }
# xfs grows while it is mounted without further rights; it wants 300 MiB.
volume='{"file":"db","size":"320Mi","kubernetes.io/fsType":"xfs","kubernetes.io/pvOrVolumeName":"pv1","kubernetes.io/readwrite":"rw"}'
reader='{"file":"db","kubernetes.io/fsType":"xfs","kubernetes.io/pvOrVolumeName":"pv1","kubernetes.io/readwrite":"ro"}'

want Success init
[ "$(said .capabilities.attach)" = true ] || stop 'it does not attach'
want 'Not supported' mount "$dir" "$volume"
want 'Not supported' unmount "$dir"
want 'Not supported' frobnicate
want 'Not supported'
want Success getvolumename "$volume"
[ "$(said .volumeName)" = db ] || stop "its name is $(said .volumeName)"

# One node may write, and is told the same whenever it asks.
want Failure waitforattach '' "$volume"
want Success isattached "$volume" node1
[ "$(said .attached)" = false ] || stop 'it is attached before attach'
want Success attach "$volume" node1
want Success attach "$volume" node1
want Success isattached "$volume" node1
[ "$(said .attached)" = true ] || stop 'it is not attached'
want Failure attach "$volume" node2
want Failure attach "$reader" node2

# On the node: a device, formatted once, mounted once.
want Success waitforattach '' "$volume"
device=$(said .device)
want Success waitforattach '' "$volume"
[ "$(said .device)" = "$device" ] || stop "two devices: $device, $(said .device)"
want Failure mountdevice "$dir" /dev/null "$volume"
want Success mountdevice "$dir" "$device" "$volume"
[ "$(at FSTYPE)" = xfs ] || stop "mounted is $(at FSTYPE)"
echo kept >"$dir/file"
want Success mountdevice "$dir" "$device" "$volume"

# It grows while it is mounted, and never shrinks.
before=$(stat -f -c %b "$dir")
want Success expandvolume "$volume" "$dir" 536870912 335544320
[ "$(said .volumeNewSize)" = 536870912 ] || stop "the new size is $(said .volumeNewSize)"
want Success expandfs "$volume" "$device" "$dir" 536870912 335544320
[ "$(stat -f -c %b "$dir")" -gt "$before" ] || stop 'the filesystem is as small as before'
want Success expandvolume "$volume" "$dir" 1024 335544320
[ "$(said .volumeNewSize)" = 536870912 ] || stop 'it shrank'

# The reverse, by nothing but names and paths; twice, as after a restart.
want Success unmountdevice "$dir"
want Success unmountdevice "$dir"
[ -z "$(devices)" ] || stop "the device $(devices) is left"
want Success detach pv1 node1
want Success detach pv1 node1
want Success detach db node1
want Success isattached "$volume" node1
[ "$(said .attached)" = false ] || stop 'it is attached after detach'

# Many may read. The data is what was written.
want Success attach "$volume" node1
want Success attach "$reader" node1
want Failure attach "$reader" node2.example.com
want Success detach db node1
want Success attach "$reader" node1
want Success attach "$reader" node2.example.com
want Failure attach "$volume" node3
want Success waitforattach '' "$reader"
want Success mountdevice "$dir" "$(said .device)" "$reader"
[ "$(cat "$dir/file")" = kept ] || stop 'the data is lost'
! touch "$dir/file" 2>/dev/null || stop 'it is writable'
want Success unmountdevice "$dir"
# A device that was never mounted goes with the last node that has the volume.
want Success waitforattach '' "$reader"
want Success detach db node1
want Success detach db node2.example.com
[ -z "$(devices)" ] || stop "the device $(devices) is left"

# A device that a program has open when it is given back is not handed out again.
want Success attach "$volume" node1
want Success waitforattach '' "$volume"
device=$(said .device)
sleep 3 <"$device" &
want Success detach db node1
want Success attach "$volume" node1
want Success waitforattach '' "$volume"
wait
want Success mountdevice "$dir" "$(said .device)" "$volume"
want Success unmountdevice "$dir"
want Success detach db node1

# Two volumes that Kubernetes calls the same: none is taken for the other.
for name in a b; do
	want Success attach "{\"file\":\"$name\",\"size\":\"1Mi\",\"kubernetes.io/pvOrVolumeName\":\"data\"}" node1
done
want Failure detach data node1
want Success detach a node1
want Success detach data node1

# A volume with something on it that is no filesystem is not formatted.
want Success attach '{"file":"odd","size":"2Mi"}' node1
dd if=/dev/zero of="$LOFS_POOL/odd.img" bs=1M count=2 2>/dev/null
printf '\125\252' | dd of="$LOFS_POOL/odd.img" bs=1 seek=510 conv=notrunc 2>/dev/null
mkswap "$LOFS_POOL/odd.img" >/dev/null 2>&1
want Success waitforattach '' '{"file":"odd"}'
want Failure mountdevice "$dir" "$(said .device)" '{"file":"odd"}'
blkid --probe "$LOFS_POOL/odd.img" >/dev/null || stop 'what was there is gone'
want Success detach odd node1

# What a Pod's author must not be able to do.
for bad in '{"file":"../db"}' '{"file":"a/b"}' '{"file":"-f"}' '{"file":".lock"}' '{"file":""}' '{"file":"new","size":"1Ki; touch /x"}' '{"file":"new"}' \
	'{"file":"x","kubernetes.io/fsType":"ext4 -F"}' "{\"file\":\"\$(touch $work/pwned)\"}" '{"file":"'"'"';touch '"$work"'/pwned;'"'"'"}' '{]' '[]' ''; do
	want Failure attach "$bad" node1
done
want Failure attach "$volume" ../node1
[ ! -e "$work/pwned" ] || stop 'an option was run as a command'
[ -z "$(find "$LOFS_POOL/attached" -mindepth 1)" ] || stop "left is $(find "$LOFS_POOL/attached" -mindepth 1)"
echo PASS

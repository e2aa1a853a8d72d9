#!/bin/sh
# skeleton: a FlexVolume driver that only mounts. Everything happens on the node,
# in mount and unmount.
#
# It needs jq, and the mount and findmnt of util-linux. Options of a volume:
#
#   size   how large (64Mi)
#
# Try it with: sh test.sh
set -eu
export LC_ALL=C PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
umask 077

op=${1:-}

# Exactly one JSON object is printed, whatever happens: only answer writes to
# the caller's standard output, which waits as file 3. All that programs print
# goes nowhere, or into a message by $(...).
exec 3>&1 >/dev/null 2>&1
answered=
answer() {
	answered=yes
	printf '%s\n' "$1" >&3
}
# A message must hold neither options nor secrets: other people read it.
fail() {
	message=$(printf %s "skeleton $op: $1" | tr '\000-\037\177-\377' ' ' | sed 's/[\\"]/\\&/g')
	answer "{\"status\":\"Failure\",\"message\":\"$message\"}"
	exit 1
}
# With set -e a command that fails ends the script: say so at the end.
trap '[ -n "$answered" ] || fail "ended before it was done"' EXIT

# mounted says whether something is mounted at a directory. The mount table
# knows; whether the directory exists says nothing.
mounted() {
	findmnt --noheadings --mountpoint "$1"
}

# mountvolume DIR JSON: after it the volume is mounted at DIR, or nothing is. It
# may be called again when it is mounted already.
mountvolume() {
	if mounted "$1"; then
		answer '{"status":"Success","message":"it is mounted already"}'
		return
	fi
	# jq quotes each value for the shell (@sh): no value is run as a command. A
	# secret is $(.["kubernetes.io/secret/KEY"] // "" | @base64d) in the same way.
	size='' mode='' group=''
	read=$(printf %s "$2" | jq -r '
		@sh "size=\(.size // "" | tostring)",
		@sh "mode=\(.["kubernetes.io/readwrite"] // "rw" | tostring)",
		@sh "group=\(.["kubernetes.io/mounterArgs.FsGroup"] // .["kubernetes.io/fsGroup"] // "" | tostring)"') || read=''
	[ -n "$read" ] || fail 'the argument is no JSON object'
	eval "$read"
	# Options are written by whoever writes a Pod, and this script is root: check
	# each one before it is used.
	case $size in *[!0-9KMGi]* | [!0-9]* | ?????????????*) fail 'option size: want a number with Ki, Mi or Gi' ;; esac
	case $group in *[!0-9]*) fail 'the fsGroup is no number' ;; esac
	case $mode in ro) ;; *) mode=rw ;; esac

	# Here your storage comes in. What mounts it must be done, or have failed, when
	# this script ends: a program that stays must not keep file 3 (3>&-).
	size=${size:-16M} access=mode=0777
	[ -z "$group" ] || access=mode=2770,gid=$group
	mkdir -p "$1" || fail "cannot make the directory"
	said=$(mount -t tmpfs -o "$mode,nosuid,nodev,size=${size%i},$access" -- skeleton "$1" 2>&1) || fail "$said"
	answer '{"status":"Success"}'
}

# unmountvolume DIR: what is not mounted is done. Nothing but the path is known,
# also after a restart of the node.
unmountvolume() {
	while mounted "$1"; do
		said=$(umount -- "$1" 2>&1) || fail "$said"
	done
	# Only an empty directory goes.
	[ ! -d "$1" ] || rmdir "$1" || :
	answer '{"status":"Success"}'
}

# init runs whenever this file changes: it must be quick and change nothing.
init() {
	for tool in jq findmnt; do
		command -v "$tool" || fail "$tool is not installed"
	done
	answer '{"status":"Success","capabilities":{"attach":false,"selinuxRelabel":true,"supportsMetrics":true,"fsGroup":true,"requiresFSResize":false}}'
}

# Arguments are always "$2", never $*: a value with a blank would become two.
case $op/$# in
init/1) init ;;
mount/3) mountvolume "$2" "$3" ;;
unmount/2) unmountvolume "$2" ;;
*)
	answer '{"status":"Not supported"}'
	exit 1
	;;
esac

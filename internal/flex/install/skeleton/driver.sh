#!/bin/sh
#[mount]
# skeleton: a FlexVolume driver that only mounts. Everything happens on the node,
# in mount and unmount.
#
# It needs jq, and the mount and findmnt of util-linux. Options of a volume:
#
#   size   how large (64Mi)
#
#[end]
#[attach]
# skeleton: a FlexVolume driver that attaches. A volume is a directory of a pool that
# all nodes share; one node at a time may have it.
#
# It needs jq, and the mount and findmnt of util-linux.
#
#[end]
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

#[mount]
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

#[end]
#[attach]
# Where the volumes are. Only the test sets POOL: hosts pass no such variable.
pool=${POOL:-/var/lib/skeleton-pool}

# checkname refuses what is not one component of a path.
checkname() {
	case $1 in '' | .* | -* | *[!A-Za-z0-9._-]*) fail 'the name of a volume or node is not valid' ;; esac
}

# volume JSON sets the name of the volume, and home, which is its directory. jq
# quotes each value for the shell (@sh): no value is run as a command.
volume() {
	volume=''
	read=$(printf %s "$1" | jq -r '
		@sh "volume=\(.["kubernetes.io/pvOrVolumeName"] // "" | tostring)"') || read=''
	[ -n "$read" ] || fail 'the argument is no JSON object'
	eval "$read"
	checkname "$volume"
	home=$pool/$volume
}

# owner prints the node that has a volume, if there is one.
owner() {
	cat "$1/node" || :
}

# attach JSON NODE: here your storage comes in. It runs on the control plane.
attach() {
	volume "$1"
	checkname "$2"
	mkdir -p "$home/data" || fail 'cannot make the directory of the volume'
	# Of two nodes that attach at once, one fails: a link is made or not.
	printf %s "$2" >"$home/.$2" && ln "$home/.$2" "$home/node" || :
	rm -f "$home/.$2"
	[ "$(owner "$home")" = "$2" ] || fail 'another node has the volume'
	answer "{\"status\":\"Success\",\"device\":\"$home/data\"}"
}

# isattached JSON NODE
isattached() {
	volume "$1"
	is=false
	[ "$(owner "$home")" != "$2" ] || is=true
	answer "{\"status\":\"Success\",\"attached\":$is}"
}

# waitforattach DEVICE JSON: it runs on the node. DEVICE may be empty.
waitforattach() {
	volume "$2"
	[ -d "$home/data" ] || fail 'the volume is not attached'
	answer "{\"status\":\"Success\",\"device\":\"$home/data\"}"
}

# mountdevice DIR DEVICE JSON: once for the node. The host binds it for each Pod,
# because mount and unmount are Not supported.
mountdevice() {
	if mounted "$1"; then
		answer '{"status":"Success","message":"it is mounted already"}'
		return
	fi
	volume "$3"
	mkdir -p "$1" || fail 'cannot make the directory'
	said=$(mount --bind -- "$home/data" "$1" 2>&1) || fail "$said"
	answer '{"status":"Success"}'
}

# detach NAME NODE: there are no options. What another node has stays with it.
detach() {
	checkname "$1"
	[ "$(owner "$pool/$1")" != "$2" ] || rm -f "$pool/$1/node"
	answer '{"status":"Success"}'
}

#[end]
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
	#[mount]
	answer '{"status":"Success","capabilities":{"attach":false,"selinuxRelabel":true,"supportsMetrics":true,"fsGroup":true,"requiresFSResize":false}}'
	#[end]
	#[attach]
	answer '{"status":"Success","capabilities":{"attach":true,"selinuxRelabel":true,"supportsMetrics":true,"fsGroup":true,"requiresFSResize":false}}'
	#[end]
}

# Arguments are always "$2", never $*: a value with a blank would become two.
case $op/$# in
init/1) init ;;
#[mount]
mount/3) mountvolume "$2" "$3" ;;
unmount/2) unmountvolume "$2" ;;
#[end]
#[attach]
attach/3) attach "$2" "$3" ;;
isattached/3) isattached "$2" "$3" ;;
waitforattach/3) waitforattach "$2" "$3" ;;
mountdevice/4) mountdevice "$2" "$3" "$4" ;;
unmountdevice/2) unmountvolume "$2" ;;
detach/3) detach "$2" "$3" ;;
#[end]
*)
	answer '{"status":"Not supported"}'
	exit 1
	;;
esac

# Functions that make objects, for situations.txt and the reports of test/e2e. Each takes a name and KEY=VALUE words.

# field KEY DEFAULT WORD...: the value of a word.
field() {
	local key=$1 value=$2 word
	shift 2
	for word; do case $word in $key=*) value=${word#*=} ;; esac; done
	printf %s "$value"
}

# claim NAME [class=C] [size=S] [volume=V] [mode=M] [also=JSON]: a claim; class=- names none.
claim() {
	local class volume also
	class=$(field class "${CLASS:-bad-now}" "$@") volume=$(field volume '' "$@") also=$(field also '' "$@")
	[ "$class" = - ] || class="\"storageClassName\": \"${class#none}\","
	kubectl create -n "$N" -f - <<-EOF
		{"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "$1"}, "spec": {
		  ${class#-} ${also:+$also,} ${volume:+"\"volumeName\": \"$volume\","}
		  "accessModes": ["$(field mode ReadWriteOnce "$@")"], "resources": {"requests": {"storage": "$(field size 64Mi "$@")"}}}}
	EOF
}

# pod NAME CLAIM [node=N] [also=JSON]: a Pod that uses a claim.
pod() {
	local node also
	node=$(field node '' "$@") also=$(field also '' "$@")
	kubectl create -n "$N" -f - <<-EOF
		{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "$1"}, "spec": {
		  ${node:+"\"nodeName\": \"$node\","} ${also:+$also,}
		  "containers": [{"name": "none", "image": "none"}],
		  "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "$2"}}]}}
	EOF
}

# class NAME [driver=D] [binds=Immediate] [also=JSON]: a StorageClass.
class() {
	local also
	also=$(field also '' "$@")
	kubectl create -f - <<-EOF
		{"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "$1"}, ${also:+$also,}
		 "provisioner": "$(field driver "${DRIVER:-bad.csi.example.com}" "$@")", "volumeBindingMode": "$(field binds Immediate "$@")"}
	EOF
}

# volume NAME [driver=D] [handle=H] [class=C] [size=S] [policy=P] [also=JSON] [csi=JSON]: a volume made by hand.
volume() {
	local also csi
	also=$(field also '' "$@") csi=$(field csi '' "$@")
	kubectl create -f - <<-EOF
		{"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "$1"}, "spec": {
		  "storageClassName": "$(field class hand "$@")", "capacity": {"storage": "$(field size 64Mi "$@")"},
		  "persistentVolumeReclaimPolicy": "$(field policy Retain "$@")", "accessModes": ["ReadWriteOnce"], ${also:+$also,}
		  "csi": {"driver": "$(field driver "${DRIVER:-bad.csi.example.com}" "$@")", "volumeHandle": "$(field handle "$1" "$@")"${csi:+, $csi}}}}
	EOF
}

# attachment NAME NODE VOLUME: an attachment made by hand.
attachment() {
	kubectl create -f - <<-EOF
		{"apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment", "metadata": {"name": "$1"}, "spec": {
		  "attacher": "${DRIVER:-bad.csi.example.com}", "nodeName": "$2", "source": {"persistentVolumeName": "$3"}}}
	EOF
}

# node NAME STATUS: a Node without an agent, whose Ready condition has this status, and on
# which the driver has registered as on node1: it attaches for it, too. Only Pods that name the
# node go there.
node() {
	kubectl create -f - <<-EOF
		{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "$1"}, "spec": {"unschedulable": true}}
	EOF
	kubectl create -f - <<-EOF
		{"apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": {"name": "$1"},
		 "spec": {"drivers": [{"name": "bad.csi.example.com", "nodeID": "id-node1", "topologyKeys": []}]}}
	EOF
	kubectl patch node "$1" --subresource=status --type=merge -p \
		'{"status": {"conditions": [{"type": "Ready", "status": "'"$2"'", "reason": "Test", "message": "set by hand"}]}}'
}

# healthy OBJECT: waits until all is well.
healthy() {
	timeout 60 bash -c 'until volplane why "$1" -n "$N" >/dev/null; do read -rt 0.1 <> <(:) || :; done' - "$1"
}

# at POD: where the node has the Pod's volume.
at() {
	kubectl get pod "$1" -n "$N" -o 'jsonpath={.status.conditions[?(@.type=="volplane.dev/VolumesMounted")].message}' |
		cut -d= -f2
}

# mounted POD: waits until the Pod has its volumes.
mounted() {
	kubectl wait "pod/$1" -n "$N" --for=condition=volplane.dev/VolumesMounted --timeout=60s
}

# break_filesystem DIR: has the kernel find an error in a filesystem, after which it takes no writes.
break_filesystem() {
	local device
	device=$(findmnt -nrvo SOURCE "$1")
	mount -o remount,errors=remount-ro "$device" "$1"
	echo test >"/sys/fs/ext4/${device#/dev/}/trigger_fs_error"
}

# work_in DIR: a process works in a directory for a while.
work_in() {
	(cd "$1" && exec sleep 60) >/dev/null 2>&1 &
}

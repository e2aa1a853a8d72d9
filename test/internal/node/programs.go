package node

// script is the first process of the node's namespaces. The node has its own directories where a kubelet and a
// container runtime write, its own network, and plain files in the place of kernel settings. When its input ends,
// everything there ends, and what the kernel keeps beyond namespaces is removed.
const script = `
dir=$1 service=$2 group=$3 kubeconfig=$4
shift 4
mount --make-rprivate /
# What others have mounted would be busy here when they have unmounted it.
while read -r _ at _; do
	case $at/ in // | /proc/* | /sys/* | /dev/*) continue ;; esac
	for needed in "$dir" "$kubeconfig" "$1" /usr/bin /etc /var/lib /var/log /run; do
		case $needed/ in "$at"/*) continue 2 ;; esac
	done
	umount --lazy "$at" || true
done </proc/self/mounts
mount -t proc proc /proc
for own in /var/lib /var/log /run; do mount -t tmpfs -o mode=755 tmpfs $own; done
mount --make-rshared /var/lib
mkdir -p /var/lib/kubelet/plugins_registry /var/lib/kubelet/plugins /var/lib/kubelet/pods
for name in vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops \
	kernel/keys/root_maxkeys kernel/keys/root_maxbytes; do
	file=$dir/$(basename $name)
	cat /proc/sys/$name >$file
	mount --bind $file /proc/sys/$name
done
ip link set lo up
ip address add $service/32 dev lo
ip link add up0 type veth peer name up1
ip address add 10.88.0.2/24 dev up0
ip link set up0 up
ip link set up1 up
ip route add default via 10.88.0.1
containerd --config $dir/containerd.toml &
until [ -S $dir/containerd.sock ]; do sleep 0.05; done
"$@" </dev/null &
echo ready
read -r end || true
kill -9 -1 || true
wait
loops=$(losetup --noheadings --list --output NAME,BACK-MAJ:MIN |
	awk -v device=$(mountpoint -d /var/lib) '$2 == device { print $1 }')
umount -R /var/lib || true
for loop in $loops; do losetup --detach $loop || true; done
find /sys/fs/cgroup -depth -type d -path "/sys/fs/cgroup/*$group*" -exec rmdir {} \;
`

const containerdConfiguration = `
version = 2
root = "%[1]s/root"
state = "/run/containerd"
[grpc]
  address = "%[1]s/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "` + Pause + `"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "%[1]s/cni"
`

const network = `{"cniVersion": "0.4.0", "name": "node", "plugins": [{
  "type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true,
  "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.89.0.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}
}]}`

const kubeletConfiguration = `
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
enableServer: false
readOnlyPort: 0
healthzPort: 0
authentication: {anonymous: {enabled: false}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
containerRuntimeEndpoint: unix://%[1]s/containerd.sock
cgroupDriver: cgroupfs
cgroupsPerQOS: false
cgroupRoot: /%[2]s
enforceNodeAllocatable: []
failCgroupV1: false
failSwapOn: false
localStorageCapacityIsolation: false
makeIPTablesUtilChains: false
resolvConf: ""
nodeStatusUpdateFrequency: 1s
syncFrequency: 5s
imageGCHighThresholdPercent: 100
evictionHard:
  memory.available: "0%%"
  nodefs.available: "0%%"
  nodefs.inodesFree: "0%%"
  imagefs.available: "0%%"
  imagefs.inodesFree: "0%%"
`

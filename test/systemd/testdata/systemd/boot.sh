#!/bin/bash
# Boots a machine made of this one's files, in namespaces of its own, and has it run the script CHECK: boot.sh DIR BIN DEPLOY
# CHECK. What is below DIR/var outlives the boot as /var/lib does, and DIR/log has what the script says. It changes nothing
# of this machine's kernel.
set -eu
dir=$1 bin=$2 deploy=$3 check=$4
here=$(cd "$(dirname "$0")" && pwd)
root=$dir/top/root
mkdir -p "$dir/top" "$dir/var"
mount -t tmpfs machine "$dir/top"
mkdir "$dir/top/upper" "$dir/top/work" "$root"
mount -t overlay -o "lowerdir=/,upperdir=$dir/top/upper,workdir=$dir/top/work" overlay "$root"
mount -t proc proc "$root/proc"
mount -o bind "$root/proc/sys" "$root/proc/sys" && mount -o remount,bind,ro "$root/proc/sys"
mount --rbind /sys "$root/sys"
mount --rbind /dev "$root/dev"
mount -t tmpfs run "$root/run"
mount --bind "$dir/var" "$root/var/lib"
mount --bind "$bin" "$root/usr/local/bin"
ln -sf /usr/local/bin/volplane "$root/usr/sbin/mount.volplane"
ln -sf /usr/local/bin/volplane "$root/usr/sbin/umount.volplane"
rm -rf "$root/etc/systemd/system" "$root/etc/fstab"
mkdir -p "$root/etc/systemd/system/volplane.service.d" "$root/srv/data" "$root/srv/lazy" "$root/log"
mount --bind "$dir" "$root/log"
for unit in sysctl binfmt modules-load udevd udev-trigger; do
  ln -s /dev/null "$root/etc/systemd/system/systemd-$unit.service"
done
cp "$deploy/volplane.service" "$deploy/volplane-docker.socket" "$here"/*.target "$here"/*.service "$root/etc/systemd/system/"
# Not every machine for tests may raise its limits, and a test of the watchdog need not take two minutes.
printf '[Service]\nLimitNOFILE=\nWatchdogSec=20s\n' >"$root/etc/systemd/system/volplane.service.d/limit.conf"
if [ "$check" = mounts.sh ]; then
  cp "$here/fstab" "$root/etc/fstab"
  # Where the kernel cannot mount at the first access, systemd would not reach remote-fs.target.
  test -e /dev/autofs || { sed -i /x-systemd.automount/d "$root/etc/fstab"; rmdir "$root/srv/lazy"; }
  mkdir "$root/etc/systemd/system/machine.target.wants"
  ln -s ../volplane.service "$root/etc/systemd/system/machine.target.wants/"
fi
cp "$here/$check" "$root/usr/local/check.sh"
# A root that is only one of chroot would have programs that enter a container's namespace see this machine's files.
cd "$root"
mkdir old
pivot_root . old
umount -l old
exec env -i container=machine PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin chroot . /lib/systemd/systemd --unit=machine.target --log-target=console --show-status=no

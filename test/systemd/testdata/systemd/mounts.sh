# What a service that starts after remote-fs.target finds, and what it leaves for the next boot.
set -eux
trap 'test $? = 0 || { findmnt; systemctl status srv-data.mount; journalctl --sync; journalctl --no-pager -n 30; }' EXIT
boot=$(cat /log/boot)
findmnt /srv/data
systemctl is-active volplane.service srv-data.mount
test "$boot" = 1 || test "$(cat /srv/data/file)" = "from boot 1"
echo "from boot 1" >/srv/data/file
# The kernel of some machines for tests has no automounts.
if test -e /srv/lazy; then
  # The first access mounts.
  test "$(findmnt -n -o FSTYPE /srv/lazy)" = autofs
  echo "from boot $boot" >/srv/lazy/file || { findmnt; journalctl --no-pager -u srv-lazy.mount -u volplane.service -u srv-lazy.automount | tail -40; exit 1; }
  # Nobody uses it for two seconds: systemd unmounts it, and the next access mounts it again. A look at the path is a use.
  for i in $(seq 600); do
    grep -q ' /srv/lazy .* - ext4 ' /proc/self/mountinfo || break
    test "$i" != 600 || { journalctl --no-pager -u srv-lazy.mount -u srv-lazy.automount; exit 1; }
    sleep 0.1
  done
  for i in $(seq 600); do
    ls /run/volplane-mounts/* | grep -q . || break
    test "$i" != 600 || exit 1
    sleep 0.1
  done
  systemctl is-active srv-lazy.automount
  test "$(cat /srv/lazy/file)" = "from boot $boot"
fi
# An upgrade restarts the control plane, and nobody who uses a volume notices.
systemctl start user.service
lives() { systemctl show -P InvocationID user.service srv-data.mount && systemctl is-active user.service srv-data.mount; }
lives >/run/before
systemctl restart volplane.service
lives >/run/after
cmp /run/before /run/after
# So is one that hangs, by systemd.
kill -STOP "$(systemctl show -P MainPID volplane.service)"
for i in $(seq 900); do
  test "$(systemctl show -P NRestarts volplane.service)" = 0 || ! systemctl is-active volplane.service || break
  test "$i" != 900 || { journalctl --no-pager -u volplane.service | tail -40; exit 1; }
  sleep 0.1
done
lives >/run/after
cmp /run/before /run/after
systemctl stop user.service
systemctl stop srv-data.mount
! findmnt /srv/data
systemctl start srv-data.mount
test -e /srv/data/file
echo "boot $boot was good"

# docker asks for a volume before anything has started the control plane: systemd starts it. Then the control plane is
# restarted and stopped while a container has the volume, and each call of docker waits for it.
set -eux
trap 'test $? = 0 || journalctl --no-pager -u volplane -u docker -u volplane-docker.socket | tail -60' EXIT
echo 'DOCKER_OPTS="--iptables=false --ip6tables=false --bridge=none --ip-forward=false"' >/etc/default/docker
# Not every machine for tests may raise its limits.
for unit in docker containerd; do
  mkdir -p /etc/systemd/system/$unit.service.d
  printf '[Service]\nLimitNOFILE=\nLimitNPROC=\nLimitCORE=\n' >/etc/systemd/system/$unit.service.d/limits.conf
done
systemctl daemon-reload
mkdir -p /run/image/bin
cp /bin/busybox /run/image/bin/
ln -s busybox /run/image/bin/sh
systemctl enable --now volplane-docker.socket
systemctl start docker.service
tar -C /run/image -c . | docker import - lab/busybox:1
! systemctl is-active volplane.service
docker volume create -d volplane -o size=16Mi data
test "$(systemctl is-active volplane.service)" != inactive
docker run -d --name user --network none --init=false -v data:/data lab/busybox:1 sh -c 'echo kept >/data/file; exec sleep 3600'
systemctl restart volplane.service &
docker volume inspect data
wait $!
test "$(docker exec user sh -c 'read line </data/file; echo $line')" = kept
# Stopped by hand it stays so until docker asks.
systemctl stop volplane.service
docker rm -f user
docker run --rm --network none -v data:/data lab/busybox:1 sh -c 'read line </data/file; test $line = kept'
# Here the plugin does not see the host's processes, so it keeps what a container has used.
! docker volume rm data
systemctl stop docker.service docker.socket
echo "boot $(cat /log/boot) was good"

#!/usr/bin/env python3
"""skeleton.example.com is a CSI driver whose volumes are directories of this host.

A volume is on the node that has made it, and is mounted by a bind mount. Its size is written down, and not enforced.

It needs root, the mount and umount of util-linux, and grpcio. Where your storage comes in: CreateVolume, DeleteVolume
and bind.
"""
import argparse
import concurrent.futures
import hashlib
import logging
import os
import re
import shutil
import signal
import subprocess
import threading

import grpc
# csi.binpb refers to the messages of these modules.
from google.protobuf import (descriptor_pb2, descriptor_pool, message_factory,  # noqa: F401
                             timestamp_pb2, wrappers_pb2)

NAME, VERSION = 'skeleton.example.com', '0.1.0'
# It becomes a label of the node: Pods go where their volumes are.
TOPOLOGY_KEY = 'topology.skeleton.example.com/node'
DEFAULT_SIZE = 1 << 30

# csi.binpb is csi.proto of CSI, compiled, so that no stubs need to be generated.
POOL = descriptor_pool.Default()
with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), 'csi.binpb'), 'rb') as compiled:
    POOL.AddSerializedFile(compiled.read())


def message(descriptor):
    """Return the class of a message."""
    if hasattr(message_factory, 'GetMessageClass'):
        return message_factory.GetMessageClass(descriptor)
    return message_factory.MessageFactory(POOL).GetPrototype(descriptor)


def mode_of(capability):
    """Return the name of an access mode."""
    modes = POOL.FindEnumTypeByName('csi.v1.VolumeCapability.AccessMode.Mode').values_by_number
    number = capability.access_mode.mode
    return modes[number].name if number in modes else 'UNKNOWN'


class Refused(Exception):
    """An answer with a code other than OK."""

    def __init__(self, code, text):
        super().__init__(text)
        self.code = getattr(grpc.StatusCode, code)


def supported(capabilities):
    """Refuse what a directory of this host cannot be."""
    if not capabilities:
        raise Refused('INVALID_ARGUMENT', 'volume_capabilities are missing')
    for c in capabilities:
        if not c.HasField('mount') or c.mount.fs_type or c.mount.mount_flags:
            raise Refused('INVALID_ARGUMENT', 'volumes are directories: they are no devices, '
                          'and have no filesystem and no mount options of their own')
        if mode_of(c) not in ('SINGLE_NODE_WRITER', 'SINGLE_NODE_READER_ONLY'):
            raise Refused('INVALID_ARGUMENT', 'a volume is on one node')


def is_id(text):
    """Say whether a text has the form of an id: it becomes part of a path."""
    return re.fullmatch('[0-9a-f]{32}-[0-9]+', text) is not None


def run(*command):
    """Run a program. What it prints becomes the message if it fails."""
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if done.returncode != 0:
        raise Refused('INTERNAL', done.stdout.decode(errors='replace').strip() or command[0] + ' failed')


def mounts_of(volume):
    """Return where a volume is mounted, and whether it is read-only there.

    The mount table knows, also after a crash; no file of ours does.
    """
    found = []
    with open('/proc/self/mountinfo', encoding='utf-8', errors='surrogateescape') as table:
        for line in table:
            # Of a bind mount, the fourth field is the directory in its filesystem that is mounted.
            fields = line.split(' ')
            if fields[3].endswith('/' + volume):
                point = re.sub(r'\\([0-7]{3})', lambda c: chr(int(c.group(1), 8)), fields[4])
                found.append((point, 'ro' in fields[5].split(',')))
    return found


def unmount(volume, path):
    """Unmount a volume from a path, and remove the directory, which must be empty then."""
    for point, _ in mounts_of(volume):
        if point == path:
            run('umount', '--', path)
    try:
        os.rmdir(path)
    except FileNotFoundError:
        pass


class Driver:
    """The three services of CSI.

    A method has the name of a call, takes its request, and returns the fields of the answer. What there is no method
    for answers UNIMPLEMENTED, and the capabilities say what there is.
    """

    def __init__(self, directory, node):
        # The directory has one directory for each volume. Its name is the volume's id.
        self.directory, self.node = directory, node
        self.topology = {'segments': {TOPOLOGY_KEY: node}}

    def GetPluginInfo(self, _):
        return {'name': NAME, 'vendor_version': VERSION}

    def Probe(self, _):
        """Say that the driver is ready; it may look at your storage first."""
        return {}

    def GetPluginCapabilities(self, _):
        return {'capabilities': [{'service': {'type': 'CONTROLLER_SERVICE'}},
                                 {'service': {'type': 'VOLUME_ACCESSIBILITY_CONSTRAINTS'}}]}

    def ControllerGetCapabilities(self, _):
        return {'capabilities': [{'rpc': {'type': 'CREATE_DELETE_VOLUME'}}]}

    def NodeGetCapabilities(self, _):
        return {}

    def NodeGetInfo(self, _):
        return {'node_id': self.node, 'accessible_topology': self.topology}

    def CreateVolume(self, r):
        """Make a volume.

        The same request comes again if its answer is lost, and after a crash: one name is one volume, so the id begins
        with a hash of the name, and has the size, too.
        """
        if not r.name:
            raise Refused('INVALID_ARGUMENT', 'name is missing')
        supported(r.volume_capabilities)
        if r.HasField('volume_content_source'):
            raise Refused('INVALID_ARGUMENT', 'volumes cannot be copied')
        places = [t.segments.get(TOPOLOGY_KEY) for t in r.accessibility_requirements.requisite]
        if places and self.node not in places:
            raise Refused('RESOURCE_EXHAUSTED', f'volumes are on node {self.node} only')
        least, most = r.capacity_range.required_bytes, r.capacity_range.limit_bytes
        if least < 0 or most < 0 or 0 < most < least:
            raise Refused('OUT_OF_RANGE', f'no size has {least} bytes at least and {most} at most')
        begin = hashlib.sha256(r.name.encode()).hexdigest()[:32] + '-'
        size = next((int(f[len(begin):]) for f in os.listdir(self.directory) if f.startswith(begin)), 0)
        if size and (size < least or 0 < most < size):
            raise Refused('ALREADY_EXISTS', f'volume {r.name!r} has {size} bytes')
        size = size or least or min(most or DEFAULT_SIZE, DEFAULT_SIZE)
        volume = f'{begin}{size}'
        # Here your storage comes in.
        os.makedirs(self.home(volume), 0o700, exist_ok=True)
        os.chmod(self.home(volume), 0o777)
        return {'volume': {'volume_id': volume, 'capacity_bytes': size, 'accessible_topology': [self.topology]}}

    def DeleteVolume(self, r):
        """Delete a volume. What does not exist is deleted already."""
        volume = r.volume_id
        if not volume:
            raise Refused('INVALID_ARGUMENT', 'volume_id is missing')
        if not is_id(volume):
            return {}
        unmount(volume, self.view(volume))
        for point, _ in mounts_of(volume):
            raise Refused('FAILED_PRECONDITION', f'volume {volume} is mounted at {point}')
        # Half of a volume must not be found by its name: it gets another name before its files are deleted.
        gone = os.path.join(self.directory, '.deleted-' + volume)
        if os.path.isdir(self.home(volume)):
            os.rename(self.home(volume), gone)
        if os.path.isdir(gone):
            shutil.rmtree(gone)
        return {}

    def ValidateVolumeCapabilities(self, r):
        """Say whether a volume can be used in a way."""
        if not r.volume_id or not r.volume_capabilities:
            raise Refused('INVALID_ARGUMENT', 'volume_id or volume_capabilities are missing')
        self.exists(r.volume_id)
        try:
            supported(r.volume_capabilities)
        except Refused as e:
            return {'message': str(e)}
        return {'confirmed': {'volume_capabilities': r.volume_capabilities}}

    def NodePublishVolume(self, r):
        """Mount a volume at a path, once, however often it is called."""
        if not r.volume_id or not os.path.isabs(r.target_path):
            raise Refused('INVALID_ARGUMENT', 'volume_id or target_path is missing')
        supported([r.volume_capability])
        self.exists(r.volume_id)
        read_only = r.readonly or mode_of(r.volume_capability) == 'SINGLE_NODE_READER_ONLY'
        for point, is_read_only in mounts_of(r.volume_id):
            if point == r.target_path and is_read_only == read_only:
                return {}
            if point == r.target_path:
                raise Refused('ALREADY_EXISTS', f'volume {r.volume_id} is mounted with read-only {is_read_only}')
        os.makedirs(r.target_path, 0o750, exist_ok=True)
        self.bind(r.volume_id, r.target_path, read_only)
        return {}

    def bind(self, volume, target, read_only):
        """Mount a volume.

        A mount becomes read-only by a second system call, and the driver may be killed between the two. So that nothing
        is writable at the target that must not be, it is made read-only elsewhere and mounted from there.
        """
        if not read_only:
            run('mount', '--bind', '--', self.home(volume), target)
            return
        view = self.view(volume)
        unmount(volume, view)
        os.mkdir(view, 0o700)
        run('mount', '--bind', '--', self.home(volume), view)
        try:
            run('mount', '-o', 'remount,bind,ro', '--', view)
            run('mount', '--bind', '--', view, target)
        finally:
            unmount(volume, view)

    def NodeUnpublishVolume(self, r):
        """Take away what NodePublishVolume has mounted, and succeed if nothing is there."""
        if not r.volume_id or not os.path.isabs(r.target_path):
            raise Refused('INVALID_ARGUMENT', 'volume_id or target_path is missing')
        unmount(r.volume_id, r.target_path)
        return {}

    def home(self, volume):
        return os.path.join(self.directory, volume)

    def view(self, volume):
        return os.path.join(self.directory, '.read-only-' + volume)

    def exists(self, volume):
        if not is_id(volume) or not os.path.isdir(self.home(volume)):
            raise Refused('NOT_FOUND', f'there is no volume {volume!r}')


def answering(method, call, lock):
    """Return what answers a request with the fields that a call returns.

    Calls wait for each other. A driver whose storage takes its time lets only the calls of one volume wait for each
    other. Those that fail are printed.
    """
    response = message(method.output_type)

    def answer(request, context):
        try:
            with lock:
                return response(**call(request))
        except (Refused, OSError) as e:
            logging.warning('%s: %s', method.name, e)
            context.abort(getattr(e, 'code', grpc.StatusCode.INTERNAL), str(e))
    return answer


def services(driver):
    """Return what a server needs to serve a driver."""
    lock = threading.Lock()
    for name in ('csi.v1.Identity', 'csi.v1.Controller', 'csi.v1.Node'):
        yield grpc.method_handlers_generic_handler(name, {
            method.name: grpc.unary_unary_rpc_method_handler(
                answering(method, getattr(driver, method.name), lock),
                request_deserializer=message(method.input_type).FromString,
                response_serializer=lambda answer: answer.SerializeToString())
            for method in POOL.FindServiceByName(name).methods if hasattr(driver, method.name)})


def main():
    """Serve the driver at a socket until SIGTERM."""
    flags = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    flags.add_argument('--endpoint', default=os.environ.get('CSI_ENDPOINT', ''), help='address of the socket, as unix:///PATH')
    flags.add_argument('--node', default=os.environ.get('NODE_NAME', ''), help='name of this node')
    flags.add_argument('--dir', default='/var/lib/skeleton.example.com', help='directory of the volumes')
    args = flags.parse_args()
    socket = args.endpoint.removeprefix('unix://')
    if not os.path.isabs(socket) or not args.node:
        flags.error(f'--endpoint {args.endpoint!r} or --node {args.node!r}: want unix:///PATH, and the name of this node')
    logging.basicConfig(format='%(asctime)s %(message)s', level=logging.INFO)
    os.makedirs(args.dir, 0o700, exist_ok=True)
    # A driver that was killed leaves its socket.
    if os.path.lexists(socket):
        os.remove(socket)
    # Whoever can connect is obeyed.
    os.umask(0o077)
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(max_workers=8))
    server.add_generic_rpc_handlers(tuple(services(Driver(args.dir, args.node))))
    server.add_insecure_port('unix:' + socket)
    server.start()
    logging.info('%s %s serves %s at %s', NAME, VERSION, args.dir, socket)
    signal.signal(signal.SIGTERM, lambda *_: server.stop(grace=5))
    signal.signal(signal.SIGINT, lambda *_: server.stop(grace=5))
    server.wait_for_termination()


if __name__ == '__main__':
    main()

"""Tests the driver beside this file, with real mounts: as root: python3 -m unittest"""
import os
import tempfile
import unittest

import driver


def request(call, **fields):
    """Return the request of a call."""
    return driver.message(driver.POOL.FindMessageTypeByName(f'csi.v1.{call}Request'))(**fields)


def capability():
    """Return what Kubernetes asks for when a claim says ReadWriteOnce."""
    return {'mount': {'fs_type': ''}, 'access_mode': {'mode': 'SINGLE_NODE_WRITER'}}


class Test(unittest.TestCase):
    def setUp(self):
        work = tempfile.TemporaryDirectory()
        self.addCleanup(work.cleanup)
        self.target = os.path.join(work.name, 'pod', 'mount point')
        self.driver = driver.Driver(os.path.join(work.name, 'volumes'), 'n1')
        os.mkdir(self.driver.directory)

    def call(self, call, **fields):
        return getattr(self.driver, call)(request(call, **fields))

    def refuses(self, code, call, **fields):
        with self.assertRaises(driver.Refused) as refused:
            self.call(call, **fields)
        self.assertEqual(code, refused.exception.code.name)

    def test_life(self):
        """Take a volume through its life, and make each call twice."""
        create = {'name': 'a/b', 'volume_capabilities': [capability()], 'capacity_range': {'required_bytes': 1000}}
        made = self.call('CreateVolume', **create)['volume']
        self.assertEqual(1000, made['capacity_bytes'])
        self.assertEqual(made, self.call('CreateVolume', **create)['volume'])
        self.refuses('ALREADY_EXISTS', 'CreateVolume', **dict(create, capacity_range={'required_bytes': 2000}))

        volume = made['volume_id']
        publish = {'volume_id': volume, 'target_path': self.target, 'volume_capability': capability()}
        file = os.path.join(self.target, 'file')
        for _ in range(2):
            self.call('NodePublishVolume', **publish)
        with open(file, 'w', encoding='utf-8') as f:
            f.write('kept')
        self.refuses('FAILED_PRECONDITION', 'DeleteVolume', volume_id=volume)
        self.refuses('ALREADY_EXISTS', 'NodePublishVolume', readonly=True, **publish)
        for _ in range(2):
            self.call('NodeUnpublishVolume', volume_id=volume, target_path=self.target)
        self.assertFalse(os.path.exists(self.target))

        # It is mounted anew and read-only, and has what was written.
        for _ in range(2):
            self.call('NodePublishVolume', readonly=True, **publish)
        with open(file, encoding='utf-8') as f:
            self.assertEqual('kept', f.read())
        with self.assertRaises(OSError):
            os.remove(file)
        self.call('NodeUnpublishVolume', volume_id=volume, target_path=self.target)
        for _ in range(2):
            self.call('DeleteVolume', volume_id=volume)
        self.assertEqual([], os.listdir(self.driver.directory))
        self.refuses('NOT_FOUND', 'NodePublishVolume', **publish)

    def test_refused(self):
        """What the driver cannot do is refused, and so are ids that are none."""
        precious = os.path.join(os.path.dirname(self.driver.directory), 'precious')
        os.mkdir(precious)
        for volume in ('..', '../precious', precious, 'no\0id'):
            self.call('DeleteVolume', volume_id=volume)
            self.refuses('NOT_FOUND', 'NodePublishVolume', volume_id=volume, target_path=precious,
                         volume_capability=capability())
        self.assertTrue(os.path.isdir(precious))
        shared = dict(capability(), access_mode={'mode': 'MULTI_NODE_MULTI_WRITER'})
        far = {'requisite': [{'segments': {driver.TOPOLOGY_KEY: 'n2'}}]}
        for code, other in (('OUT_OF_RANGE', {'capacity_range': {'required_bytes': 2, 'limit_bytes': 1}}),
                            ('RESOURCE_EXHAUSTED', {'accessibility_requirements': far}),
                            ('INVALID_ARGUMENT', {'volume_capabilities': [shared]})):
            self.refuses(code, 'CreateVolume', **{'name': 'v', 'volume_capabilities': [capability()], **other})


if __name__ == '__main__':
    unittest.main()

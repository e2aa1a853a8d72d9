package hostile

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	decide "volplane.dev/volplane/internal/decide/mount"
	"volplane.dev/volplane/internal/mount"
	"volplane.dev/volplane/internal/volume"
	standalone "volplane.dev/volplane/test/internal/plane"
)

// snapshot is the state of the API, the journals and the mount table at one time.
type snapshot struct {
	claims      []corev1.PersistentVolumeClaim
	volumes     []corev1.PersistentVolume
	attachments []storagev1.VolumeAttachment
	pods        []corev1.Pod
	nodes       []corev1.Node
	intents     []corev1.ConfigMap
	capacities  []storagev1.CSIStorageCapacity
	// records are those of the nodes' journals, mounts where something is mounted
	// or a device is below a node's directory.
	records map[string][]*decide.Record
	mounts  map[string][]string
}

// look takes a snapshot.
func look(ctx context.Context, client kubernetes.Interface, dirs map[string]string) (*snapshot, error) {
	s, all := &snapshot{records: map[string][]*decide.Record{}, mounts: map[string][]string{}}, metav1.ListOptions{}
	claims, err := client.CoreV1().PersistentVolumeClaims("").List(ctx, all)
	volumes, e1 := client.CoreV1().PersistentVolumes().List(ctx, all)
	attachments, e2 := client.StorageV1().VolumeAttachments().List(ctx, all)
	pods, e3 := client.CoreV1().Pods("").List(ctx, all)
	nodes, e4 := client.CoreV1().Nodes().List(ctx, all)
	intents, e5 := client.CoreV1().ConfigMaps("").List(ctx, metav1.ListOptions{LabelSelector: volume.LabelIntents})
	capacities, e6 := client.StorageV1().CSIStorageCapacities("").List(ctx, all)
	if err := errors.Join(err, e1, e2, e3, e4, e5, e6); err != nil {
		return nil, err
	}
	s.capacities = capacities.Items
	s.claims, s.volumes, s.attachments, s.pods, s.nodes, s.intents = claims.Items, volumes.Items, attachments.Items,
		pods.Items, nodes.Items, intents.Items
	for node, dir := range dirs {
		records, err := readJournal(dir)
		if err != nil {
			return nil, err
		}
		s.records[node] = slices.Collect(maps.Values(records))
		if s.mounts[node], err = shown(dir); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// readJournal returns the records of a node's journal by their files.
func readJournal(dir string) (map[string]*decide.Record, error) {
	files, err := filepath.Glob(filepath.Join(dir, "journal", "*.json*"))
	if err != nil {
		return nil, err
	}
	records := map[string]*decide.Record{}
	for _, f := range files {
		// It may be removed in the meantime.
		data, err := os.ReadFile(f)
		if os.IsNotExist(err) || strings.HasSuffix(f, ".tmp") {
			continue
		}
		var file struct{ Record *decide.Record }
		if err == nil {
			err = json.Unmarshal(data, &file)
		}
		if err != nil || file.Record == nil {
			return nil, fmt.Errorf("journal record %s: %w", f, err)
		}
		records[f] = file.Record
	}
	return records, nil
}

// shown returns the mounts and published devices below a node's directory.
func shown(dir string) ([]string, error) {
	points, err := mount.Below(dir)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, p := range points {
		out = append(out, p.Path)
	}
	devices, err := filepath.Glob(filepath.Join(dir, "plugins/kubernetes.io/csi/volumeDevices/publish/*/*"))
	for _, path := range devices {
		if info, err := os.Stat(path); err == nil && info.Mode()&os.ModeDevice != 0 && !slices.Contains(out, path) {
			out = append(out, path)
		}
	}
	return out, err
}

// wrong describes what differs from the state at rest, or returns "".
func (l *life) wrong(s *snapshot) string {
	l.driver.mu.Lock()
	defer l.driver.mu.Unlock()
	for _, f := range []func(*snapshot) string{
		l.wrongClaims, l.wrongVolumes, l.wrongKept, l.wrongSizes, l.wrongPods, l.wrongAttachments, l.wrongNodes, l.wrongInUse,
		l.wrongRoom,
	} {
		if text := f(s); text != "" {
			return l.name + ": " + text
		}
	}
	for _, o := range s.intents {
		for key, value := range o.Data {
			if strings.Contains(value, l.driver.name) {
				return fmt.Sprintf("%s: intent is left: %s: %s", l.name, key, value)
			}
		}
	}
	return ""
}

// wrongClaims: existing claims are bound unless they wait for a Pod, and deleted claims are gone unless a
// Pod uses them.
func (l *life) wrongClaims(s *snapshot) string {
	found := map[string]*corev1.PersistentVolumeClaim{}
	for i, o := range s.claims {
		if o.Namespace == l.name {
			found[o.Name] = &s.claims[i]
		}
	}
	for _, c := range l.claims {
		if text := c.wrong(found[c.name]); text != "" {
			return text
		}
	}
	return ""
}

// wrong describes what differs from the state at rest, or returns "".
func (c *claim) wrong(o *corev1.PersistentVolumeClaim) string {
	wanted, used := !c.gone, len(c.pods) > 0
	if o == nil {
		if wanted || used {
			return "claim " + c.name + " is lost"
		}
		return ""
	}
	if !wanted && !used {
		return fmt.Sprintf("claim %s is still there, with %v", c.name, o.Finalizers)
	}
	waits := strings.Contains(*o.Spec.StorageClassName, "-late") && !used
	if o.Status.Phase != corev1.ClaimBound && !c.early && !waits {
		return fmt.Sprintf("claim %s is %s", c.name, o.Status.Phase)
	}
	return ""
}

// ours returns the volume objects of the life's driver.
func (l *life) ours(s *snapshot) []corev1.PersistentVolume {
	return slices.DeleteFunc(slices.Clone(s.volumes), func(o corev1.PersistentVolume) bool {
		return o.Spec.CSI == nil || o.Spec.CSI.Driver != l.driver.name
	})
}

// wrongVolumes: the driver has exactly the volumes of the volume objects, and volumes without a claim that
// may be deleted are gone.
func (l *life) wrongVolumes(s *snapshot) string {
	objects, claimed := map[string]bool{}, map[string]bool{}
	for _, o := range s.claims {
		claimed[o.Namespace+"/"+o.Name+"/"+o.Spec.VolumeName] = true
	}
	for _, o := range l.ours(s) {
		ref := o.Spec.ClaimRef
		mayGo := o.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete
		switch {
		case objects[o.Spec.CSI.VolumeHandle]:
			return "two volume objects for " + o.Spec.CSI.VolumeHandle
		case l.driver.disks[o.Spec.CSI.VolumeHandle] == nil:
			return fmt.Sprintf("volume %s is not at the driver: lost", o.Name)
		case mayGo && !claimed[ref.Namespace+"/"+ref.Name+"/"+o.Name]:
			return fmt.Sprintf("volume %s (%s) has no claim and was not deleted", o.Name, o.Status.Phase)
		}
		objects[o.Spec.CSI.VolumeHandle] = true
	}
	for id := range l.driver.disks {
		if !objects[id] && !inline(id) {
			return fmt.Sprintf("volume %s of the driver has no object: leaked", id)
		}
	}
	return ""
}

// wrongKept: retained volumes exist.
func (l *life) wrongKept(s *snapshot) string {
	for name, keep := range l.kept {
		if keep && !slices.ContainsFunc(s.volumes, func(v corev1.PersistentVolume) bool { return v.Name == name }) {
			return fmt.Sprintf("volume %s was to be kept", name)
		}
	}
	return ""
}

// wrongSizes: no claim has more capacity in its status than its volume, and claims that requested more have
// it.
func (l *life) wrongSizes(s *snapshot) string {
	volumes, wants := map[string]corev1.PersistentVolume{}, map[string]*claim{}
	for _, o := range l.ours(s) {
		volumes[o.Name] = o
	}
	for _, c := range l.claims {
		wants[c.name] = c
	}
	for _, o := range s.claims {
		if v, ok := volumes[o.Spec.VolumeName]; ok && o.Namespace == l.name {
			if text := l.wrongSize(wants[o.Name], o, v); text != "" {
				return text
			}
		}
	}
	return ""
}

// wrongSize accepts less capacity where the driver has said that expansion is impossible, or where no Pod
// uses the volume on a node that could expand the filesystem.
func (l *life) wrongSize(c *claim, o corev1.PersistentVolumeClaim, v corev1.PersistentVolume) string {
	d, says, has := l.driver.disks[v.Spec.CSI.VolumeHandle], v.Spec.Capacity.Storage().Value(),
		o.Status.Capacity.Storage().Value()
	if says > d.bytes || has > d.formatted || has > says {
		return fmt.Sprintf("claim %s has %d, its volume %d, the driver %d, formatted %d", o.Name, has, says,
			d.bytes, d.formatted)
	}
	waits := o.Status.AllocatedResourceStatuses[corev1.ResourceStorage] == corev1.PersistentVolumeClaimNodeResizePending &&
		len(c.pods) == 0
	if has < c.size<<20 && !c.gone && !waits && !l.driver.denied[v.Spec.CSI.VolumeHandle] {
		return fmt.Sprintf("claim %s has %d of %d Mi: %v", o.Name, has, c.size, o.Status)
	}
	return ""
}

// wrongPods: existing Pods have their volume, and deleted Pods are gone.
func (l *life) wrongPods(s *snapshot) string {
	living, early := map[string]bool{}, map[string]bool{}
	for _, p := range l.loose {
		living[p] = true
	}
	for _, c := range l.claims {
		for _, p := range c.pods {
			living[p], early[p] = true, c.early
		}
	}
	for i := range s.pods {
		p := &s.pods[i]
		if p.Namespace != l.name {
			continue
		}
		if !living[p.Name] {
			return fmt.Sprintf("pod %s is still there, deleted %v", p.Name, p.DeletionTimestamp)
		}
		delete(living, p.Name)
		if ok, text := standalone.Mounted(p); !ok && !early[p.Name] {
			return fmt.Sprintf("pod %s has no volume: %s", p.Name, text)
		}
	}
	for name := range living {
		return "pod " + name + " is lost"
	}
	return ""
}

// uses returns by node the handles of the volumes that Pods use, with the number of Pods.
func (l *life) uses(s *snapshot) map[string]map[string]int {
	handles := map[string]string{}
	for _, o := range l.ours(s) {
		if o.Spec.ClaimRef != nil {
			handles[o.Spec.ClaimRef.Name] = o.Spec.CSI.VolumeHandle
		}
	}
	out := map[string]map[string]int{}
	for _, p := range s.pods {
		// One whose claim was deleted early may have none.
		if c := p.Spec.Volumes[0].PersistentVolumeClaim; p.Namespace == l.name && c != nil && handles[c.ClaimName] != "" {
			add(out, p.Spec.NodeName, handles[c.ClaimName])
		}
	}
	return out
}

func add(uses map[string]map[string]int, node, handle string) {
	if uses[node] == nil {
		uses[node] = map[string]int{}
	}
	uses[node][handle]++
}

// brings returns the inline volumes of Pods, by node.
func (l *life) brings(s *snapshot) map[string]map[string]int {
	out := map[string]map[string]int{}
	for _, p := range s.pods {
		if p.Namespace == l.name && p.Spec.Volumes[0].CSI != nil {
			sum := sha256.Sum256([]byte(string(p.UID) + p.Spec.Volumes[0].Name))
			add(out, p.Spec.NodeName, "csi-"+hex.EncodeToString(sum[:]))
		}
	}
	return out
}

// wrongAttachments: exactly the volumes that Pods use are attached, at the driver and in the API.
func (l *life) wrongAttachments(s *snapshot) string {
	said, names := map[string]bool{}, map[string]string{}
	for _, o := range l.ours(s) {
		names[o.Name] = o.Spec.CSI.VolumeHandle
	}
	for _, o := range s.attachments {
		if o.Spec.Attacher != l.driver.name {
			continue
		}
		if !o.Status.Attached || o.DeletionTimestamp != nil {
			return fmt.Sprintf("attachment %s is attached: %v, deleted: %v", o.Name, o.Status.Attached, o.DeletionTimestamp)
		}
		said[names[*o.Spec.Source.PersistentVolumeName]+" "+o.Spec.NodeName] = true
	}
	has, want := map[string]bool{}, map[string]bool{}
	for id, v := range l.driver.disks {
		for node := range v.attached {
			has[id+" "+node] = true
		}
	}
	for node, volumes := range l.uses(s) {
		for id := range volumes {
			want[id+" "+node] = true
		}
	}
	if !maps.Equal(said, has) || !maps.Equal(has, want) {
		return fmt.Sprintf("attached are %v, the API says %v, Pods use %v", has, said, want)
	}
	return ""
}

// wrongNodes: exactly the volumes that Pods use are staged and published, at the driver, in the journal and
// in the mount table.
func (l *life) wrongNodes(s *snapshot) string {
	uses, brings := l.uses(s), l.brings(s)
	for _, node := range nodes() {
		want, written := map[string]int{}, map[string]int{}
		maps.Copy(want, uses[node])
		maps.Copy(want, brings[node])
		has, paths := l.driver.shows(node)
		for _, path := range paths {
			if !slices.Contains(s.mounts[node], path) {
				return fmt.Sprintf("nothing is mounted at %q of node %s", path, node)
			}
		}
		for _, r := range s.records[node] {
			if r.Driver == l.driver.name {
				written[r.Handle] = len(r.Targets)
			}
		}
		if !maps.Equal(want, has) || !maps.Equal(has, written) {
			return fmt.Sprintf("node %s: Pods use %v, the driver has %v, the journal %v", node, want, has, written)
		}
	}
	return ""
}

// shows returns the number of targets of each volume that is published at a node, and the paths in use.
// d.mu is held.
func (d *driver) shows(node string) (has map[string]int, paths []string) {
	has = map[string]int{}
	for id, v := range d.disks {
		if v.used(node) {
			has[id] = len(v.published[node])
			paths = slices.AppendSeq(paths, maps.Keys(v.published[node]))
			if v.staged[node] != "" && d.shown(v) {
				paths = append(paths, v.staged[node])
			}
		}
	}
	return has, paths
}

// wrongInUse: a node reports exactly the volumes that Pods use there as in use.
func (l *life) wrongInUse(s *snapshot) string {
	uses := l.uses(s)
	for _, n := range s.nodes {
		used := 0
		for _, name := range n.Status.VolumesInUse {
			if strings.Contains(string(name), l.driver.name+"^") {
				used++
			}
		}
		if used != len(uses[n.Name]) {
			return fmt.Sprintf("node %s says that it uses %v, Pods use %v", n.Name, n.Status.VolumesInUse, uses[n.Name])
		}
	}
	return ""
}

// wrongRoom: the API does not have the room that no storage has.
func (l *life) wrongRoom(s *snapshot) string {
	for _, o := range s.capacities {
		if l.isOurs(o.StorageClassName) && (o.Capacity.Value() != enough || o.MaximumVolumeSize != nil) {
			return fmt.Sprintf("class %s has room for %v, and for %v at once", o.StorageClassName, o.Capacity,
				o.MaximumVolumeSize)
		}
	}
	return ""
}

// isOurs says whether a class is one of the life's.
func (l *life) isOurs(class string) bool { return strings.HasPrefix(class, l.name+"-") }

// mountsBeside describes mounts that no driver has made.
func mountsBeside(s *snapshot, lives []*life) string {
	for _, node := range nodes() {
		var known []string
		for _, l := range lives {
			l.driver.mu.Lock()
			_, paths := l.driver.shows(node)
			l.driver.mu.Unlock()
			known = append(known, paths...)
		}
		for _, path := range s.mounts[node] {
			if !slices.Contains(known, path) {
				return "something is mounted at " + path
			}
		}
	}
	return ""
}

// told returns all text that users can read.
func told(ctx context.Context, client kubernetes.Interface, s *snapshot, logs []string) (string, error) {
	events, err := client.CoreV1().Events("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return "", err
	}
	var out strings.Builder
	for _, o := range []any{events.Items, s.claims, s.volumes, s.attachments, s.pods, s.nodes, s.intents} {
		data, err := json.Marshal(o)
		if err != nil {
			return "", err
		}
		out.Write(data)
	}
	for _, path := range logs {
		data, err := os.ReadFile(path)
		if err != nil && !os.IsNotExist(err) {
			return "", err
		}
		out.Write(data)
	}
	return out.String(), nil
}

package apiserver_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/decide/identity"
	"volplane.dev/volplane/internal/testkit/seeds"
	"volplane.dev/volplane/internal/volume"
)

// requestsPerTime is how many requests of a host `make test` draws.
const requestsPerTime = 600

// The collections that a host writes or would like to read.
const (
	volumesPath     = "/api/v1/persistentvolumes"
	claimsPath      = "/api/v1/namespaces/default/persistentvolumeclaims"
	attachmentsPath = "/apis/storage.k8s.io/v1/volumeattachments"
	capacitiesPath  = "/apis/storage.k8s.io/v1/namespaces/kube-system/csistoragecapacities"
	intentsPath     = "/api/v1/namespaces/kube-system/configmaps"
	secretsPath     = "/api/v1/namespaces/default/secrets"
	nodesPath       = "/api/v1/nodes"
	csiNodesPath    = "/apis/storage.k8s.io/v1/csinodes"
	contentsPath    = "/apis/snapshot.storage.k8s.io/v1/volumesnapshotcontents"
	snapshotsPath   = "/apis/snapshot.storage.k8s.io/v1/namespaces/default/volumesnapshots"
	driversPath     = "/apis/storage.k8s.io/v1/csidrivers"
	classesPath     = "/apis/storage.k8s.io/v1/storageclasses"
)

// written returns the collections to which a host might try to write, and collections all of them.
func written() []string {
	return []string{
		volumesPath, claimsPath, attachmentsPath, capacitiesPath, intentsPath, secretsPath, nodesPath, csiNodesPath,
		contentsPath, snapshotsPath,
	}
}

func collections() []string { return append(written(), driversPath, classesPath) }

// object is an object as the API has it.
type object = map[string]any

// hostModel draws requests of a compromised host, and judges those that the API server accepts.
type hostModel struct {
	*hostCluster
	draw *rand.Rand
	// theirs are the objects of others, by their paths. They must not change.
	theirs map[string]object
	// recorded are the objects that the host itself writes, and those that belong to others, by their collections.
	recorded map[string][]object
	// mine are the recorded ones that the host may write.
	mine map[string][]object
	// values are the strings that a field is exchanged for.
	values []string
	passed map[string]int
}

// TestNoHostGetsWhatIsOfAnother: whatever request a joined host sends, with its own certificate or as its controllers,
// it gets no volume, Secret, attachment or capacity of another host. Its requests are those of a real host with fields
// removed, replaced by those of other objects, or added.
func TestNoHostGetsWhatIsOfAnother(t *testing.T) {
	t.Parallel()
	count := seeds.Count(t, requestsPerTime)
	m := newHostModel(t, seeds.First(t))
	for i := range count {
		m.play(i)
		if i%20 == 0 {
			m.joinAnew()
		}
		if t.Failed() {
			t.Fatalf("request %d of SEED=%d", i, seeds.First(t))
		}
	}
	for path := range m.theirs {
		m.unchanged(path)
	}
	if count > 10_000 && m.passed["POST "+volumesPath] == 0 {
		t.Errorf("no new volume passed, so that none was judged: %v", m.passed)
	}
	t.Logf("played %d requests of a host from seed %d on, passed %v", count, seeds.First(t), m.passed)
}

func newHostModel(t *testing.T, seed uint64) *hostModel {
	m := &hostModel{
		hostCluster: newHostCluster(t), draw: rand.New(rand.NewPCG(seed, 0)), //nolint:gosec // no secret
		theirs: map[string]object{}, recorded: map[string][]object{}, mine: map[string][]object{}, passed: map[string]int{},
	}
	for name, where := range map[string][2]string{
		"mine": {"own", "n1"}, "mine-too": {"own", "n1"}, "lent-to-me": {"shared", "n2"},
		"theirs": {"own", "n2"}, "free": {"own", ""}, "network": {"network", "n1"}, "lent": {"lent", "n1"},
	} {
		claim := m.claim(name, where[0], where[1])
		if where[1] == "" {
			continue
		}
		v := m.object(claim, where[1])
		m.keep(volumesPath, v)
		if name == "mine-too" || where[0] == "network" || where[1] == "n2" {
			if err := m.create(m.admin, v); err != nil {
				t.Fatal(err)
			}
			m.attach(name, v)
		}
	}
	for disk, driver := range map[string]string{"n1": ownDriver, "n2": ownDriver, "everywhere": networkDriver} {
		m.published(disk, driver)
	}
	ctx := t.Context()
	must(m.admin.CoreV1().Secrets("default").Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s"}},
		metav1.CreateOptions{}))(t)
	logs := []string{identity.HostIntents("n1"), identity.HostIntents("n2"), identity.DriverIntents(lentDriver)}
	for _, log := range logs {
		must(m.admin.CoreV1().ConfigMaps("kube-system").Create(ctx, &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: log + "-1", Labels: map[string]string{volume.LabelIntents: log}},
		}, metav1.CreateOptions{}))(t)
	}
	for name, node := range map[string]string{"mine": "n1", "theirs": "n2"} {
		m.makeSnapshot(name, name, node)
	}
	m.record()
	return m
}

// attach records that a volume must be attached to n1.
func (m *hostModel) attach(name string, v *corev1.PersistentVolume) {
	must(m.admin.StorageV1().VolumeAttachments().Create(m.t.Context(), &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: storagev1.VolumeAttachmentSpec{
			Attacher: v.Spec.CSI.Driver, NodeName: "n1",
			Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &v.Name},
		},
	}, metav1.CreateOptions{}))(m.t)
}

// published records what a driver has free.
func (m *hostModel) published(disk, driver string) {
	must(m.admin.StorageV1().CSIStorageCapacities("kube-system").Create(m.t.Context(), &storagev1.CSIStorageCapacity{
		ObjectMeta:       metav1.ObjectMeta{Name: "on-" + disk, Labels: map[string]string{volume.LabelDriver: driver}},
		StorageClassName: strings.TrimSuffix(driver, ".example.com"), Capacity: ptr.To(resource.MustParse("1Gi")),
		NodeTopology: &metav1.LabelSelector{MatchLabels: map[string]string{"disk": disk}},
	}, metav1.CreateOptions{}))(m.t)
}

// keep records an object that a host may write.
func (m *hostModel) keep(path string, o any) {
	u := must(runtime.DefaultUnstructuredConverter.ToUnstructured(o))(m.t)
	m.recorded[path] = append(m.recorded[path], plain(u))
	if m.ofHost(path, "", u) {
		m.mine[path] = append(m.mine[path], u)
	}
}

// record remembers all objects, which of them belong to others, and the strings in them.
func (m *hostModel) record() {
	for _, path := range collections() {
		for _, o := range m.list(path) {
			m.recorded[path] = append(m.recorded[path], o)
			if name := nameOf(o); !m.ofHost(path, name, o) {
				m.theirs[path+"/"+name] = o
			} else {
				m.mine[path] = append(m.mine[path], o)
			}
		}
	}
	seen := map[string]bool{"": true}
	for _, path := range collections() {
		for _, o := range m.recorded[path] {
			walk(o, func(in object, key string) {
				if s, ok := in[key].(string); ok {
					seen[s] = true
				}
				seen[key] = true
			})
		}
	}
	m.values = slices.Sorted(maps.Keys(seen))
}

// ofHost says whether an object is one that n1 may change.
func (m *hostModel) ofHost(path, name string, o object) bool {
	text := string(must(json.Marshal(o))(m.t))
	switch path {
	case volumesPath:
		return strings.Contains(text, sharedDriver) || strings.Contains(text, `"volplane.dev/provisioned-on":"n1"`) &&
			strings.Contains(text, ownDriver)
	case contentsPath, snapshotsPath:
		return name == "mine"
	case claimsPath, attachmentsPath:
		return slices.Contains([]string{"mine", "mine-too", "lent-to-me"}, name)
	case capacitiesPath:
		return name == "on-n1"
	case intentsPath:
		return name == identity.HostIntents("n1")+"-1"
	case nodesPath, csiNodesPath:
		return name == "n1"
	}
	return false
}

// play sends a request, and judges what it has changed.
func (m *hostModel) play(i int) {
	path := one(m, written())
	verb := one(m, []string{"POST", "PUT", "PUT", "POST", "GET", "DELETE", "PATCH"})
	by := m.n1
	if m.draw.IntN(4) == 0 {
		by = m.agent
	}
	o := m.body(path)
	name := nameOf(o)
	if name == "" || m.draw.IntN(20) == 0 {
		name = one(m, m.values)
	}
	req := by.Discovery().RESTClient().Verb(verb).SetHeader("Accept", "application/json")
	switch verb {
	case "POST":
		req.AbsPath(path)
	case "PUT":
		m.current(path, name, o)
		req.AbsPath(path, name, one(m, []string{"", "", "status"}))
	case "PATCH":
		delete(o, one(m, []string{"metadata", "spec", "status", "none"}))
		req.AbsPath(path, name, one(m, []string{"", "status"}))
	default:
		req.AbsPath(path, name)
	}
	body := must(json.Marshal(o))(m.t)
	switch verb {
	case "POST", "PUT":
		req.SetHeader("Content-Type", "application/json").Body(body)
	case "PATCH":
		req.SetHeader("Content-Type", string(types.MergePatchType)).Body(body)
	}
	answer, err := req.DoRaw(m.t.Context())
	if err != nil {
		return
	}
	m.passed[verb+" "+path]++
	m.judge(fmt.Sprintf("request %d: %s %s %s", i, verb, req.URL(), body), verb, path, answer)
}

// joinAnew lets an administrator restore n1's place.
func (m *hostModel) joinAnew() {
	ctx, all := m.t.Context(), m.admin.StorageV1().CSINodes()
	must(m.admin.CoreV1().Nodes().Patch(ctx, "n1", types.MergePatchType, []byte(`{"metadata":{"labels":{"disk":"n1"}}}`),
		metav1.PatchOptions{}))(m.t)
	// A node may delete its CSINode.
	if err := all.Delete(ctx, "n1", metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		m.t.Fatal(err)
	}
	must(all.Create(ctx, &storagev1.CSINode{
		ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Spec: storagev1.CSINodeSpec{
			Drivers: []storagev1.CSINodeDriver{{Name: ownDriver, NodeID: "n1", TopologyKeys: []string{"disk"}}},
		},
	}, metav1.CreateOptions{}))(m.t)
}

// body returns an object that is recorded, with up to three fields exchanged.
func (m *hostModel) body(path string) object {
	all := m.recorded[path]
	from := all
	if mine := m.mine[path]; len(mine) > 0 && m.draw.IntN(3) > 0 {
		from = mine
	}
	o := runtime.DeepCopyJSON(one(m, from))
	for range m.draw.IntN(4) {
		m.exchange(o, one(m, all))
	}
	return o
}

// current gives an object the resource version and, usually, the UID of the object that it replaces.
func (m *hostModel) current(path, name string, o object) {
	for _, now := range m.list(path) {
		if nameOf(now) != name {
			continue
		}
		was := unstructured.Unstructured{Object: now}
		to := unstructured.Unstructured{Object: o}
		to.SetUID(was.GetUID())
		to.SetName(name)
	}
}

// exchange removes a field, replaces its value by that of another object or any known value, or adds one to its object.
func (m *hostModel) exchange(o, other object) {
	type place struct {
		in  object
		key string
	}
	var all []place
	walk(o, func(in object, key string) { all = append(all, place{in, key}) })
	if len(all) == 0 {
		return
	}
	slices.SortFunc(all, func(a, b place) int { return strings.Compare(a.key, b.key) })
	p := one(m, all)
	switch m.draw.IntN(4) {
	case 0:
		delete(p.in, p.key)
	case 1:
		var there []any
		walk(other, func(in object, key string) {
			if key == p.key {
				there = append(there, in[key])
			}
		})
		if len(there) > 0 {
			p.in[p.key] = runtime.DeepCopyJSONValue(there[0])
		}
	case 2:
		if _, ok := p.in[p.key].(string); ok {
			p.in[p.key] = one(m, m.values)
		}
	case 3:
		p.in[one(m, m.values)] = one(m, m.values)
	}
}

// remove deletes an object that a host was allowed to make.
func (m *hostModel) remove(path string) {
	rest := m.admin.Discovery().RESTClient()
	_, err := rest.Delete().AbsPath(path).DoRaw(m.t.Context())
	if err == nil {
		// Objects with finalizers disappear only without them.
		_, _ = rest.Patch(types.MergePatchType).AbsPath(path).Body([]byte(`{"metadata":{"finalizers":null}}`)).
			DoRaw(m.t.Context())
	}
}

// list returns the objects of a collection as an administrator sees them.
func (m *hostModel) list(path string) []object {
	body := must(m.admin.Discovery().RESTClient().Get().AbsPath(path).
		SetHeader("Accept", "application/json").DoRaw(m.t.Context()))(m.t)
	var all struct{ Items []object }
	if err := json.Unmarshal(body, &all); err != nil {
		m.t.Fatal(err)
	}
	for i := range all.Items {
		all.Items[i] = plain(all.Items[i])
	}
	return all.Items
}

// plain returns an object without what the API server alone writes.
func plain(o object) object {
	for _, f := range []string{"resourceVersion", "managedFields", "generation", "creationTimestamp"} {
		unstructured.RemoveNestedField(o, "metadata", f)
	}
	return o
}

func nameOf(o object) string {
	name, _, _ := unstructured.NestedString(o, "metadata", "name")
	return name
}

// walk calls f for each field of an object, wherever it is.
func walk(v any, f func(in object, key string)) {
	switch v := v.(type) {
	case object:
		for _, key := range slices.Sorted(maps.Keys(v)) {
			f(v, key)
			walk(v[key], f)
		}
	case []any:
		for _, each := range v {
			walk(each, f)
		}
	}
}

// one draws one of several.
func one[T any](m *hostModel, all []T) T { return all[m.draw.IntN(len(all))] }

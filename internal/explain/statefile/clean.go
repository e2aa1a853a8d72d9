package statefile

import (
	"regexp"
	"slices"
	"strings"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/decide/note"
	"volplane.dev/volplane/internal/decide/provision"
	"volplane.dev/volplane/internal/explain/state"
	"volplane.dev/volplane/internal/redact"
	"volplane.dev/volplane/internal/volume"
)

// Clean returns copies of the objects with what an explanation reads of them and no
// secrets, to be shown to strangers. Fields are named one by one: what is not named
// here is left out.
func Clean(o state.Objects) state.Objects {
	c := newCleaner()
	c.learn(o)
	out := state.Objects{
		Moves: o.Moves, Now: o.Now, MakingHidden: o.MakingHidden, LeasesHidden: o.LeasesHidden,
		SnapshotsHidden: o.SnapshotsHidden, Warnings: each(o.Warnings, c.event), Begun: each(o.Begun, c.intent),
		Namespaces: each(o.Namespaces, c.namespace),
	}
	out.Claims, out.Volumes, out.Pods = each(o.Claims, c.claim), each(o.Volumes, c.volume), each(o.Pods, c.pod)
	out.Classes, out.Drivers = each(o.Classes, c.class), each(o.Drivers, c.driver)
	out.Attachments, out.Nodes = each(o.Attachments, c.attachment), each(o.Nodes, c.node)
	out.CSINodes, out.Leases = each(o.CSINodes, c.csiNode), each(o.Leases, c.lease)
	out.Snapshots, out.SnapshotContents = each(o.Snapshots, c.snapshot), each(o.SnapshotContents, c.snapshotContent)
	out.SnapshotClasses = each(o.SnapshotClasses, c.snapshotClass)
	out.Groups, out.GroupContents = each(o.Groups, c.group), each(o.GroupContents, c.groupContent)
	out.GroupClasses = each(o.GroupClasses, c.groupClass)
	if o.Full != nil {
		full := *o.Full
		full.Message = c.text(full.Message)
		out.Full = &full
	}
	return out
}

func each[T any](all []*T, clean func(*T) *T) []*T {
	out := make([]*T, 0, len(all))
	for _, o := range all {
		out = append(out, clean(o))
	}
	return out
}

// cleaner knows the secrets that were found among the attributes, so that it finds
// them in texts too.
type cleaner struct {
	secrets *redact.Secrets
	// forms are secrets by their form, whatever they are called elsewhere; each is
	// replaced by the text beside it.
	forms []form
	// done are texts that were cleaned: many objects have the same.
	done map[string]string
	// chosenBy are the keys of labels by which groups of snapshots choose their claims.
	chosenBy map[string]bool
}

type form struct {
	like *regexp.Regexp
	by   string
}

func newCleaner() cleaner {
	const words = `passw|pwd|secret|token|credential|api_?key|access_?key|private`
	return cleaner{secrets: &redact.Secrets{}, done: map[string]string{}, chosenBy: map[string]bool{}, forms: []form{
		{regexp.MustCompile(`://[^/\s@]+@`), "://" + redact.Hidden + "@"},
		{regexp.MustCompile(`(?s)-----BEGIN [^-]*-----.*?(-----END [^-]*-----|$)`), redact.Hidden},
		{regexp.MustCompile(`(?i)([\w.\-]*(?:` + words + `)[\w.\-]*\\?"?(?:=|\s*:\s*\\?"))[^\s"',;&\\]+`), "${1}" +
			redact.Hidden},
		{regexp.MustCompile(`(?i)\b(bearer|basic)\s+[\w+/.=~\-]{8,}`), "${1} " + redact.Hidden},
	}}
}

// shortestSecret is the length of the shortest value that is looked for in texts: many
// words have a shorter one in them.
const shortestSecret = 6

func (c cleaner) learn(o state.Objects) {
	for _, v := range o.Volumes {
		c.learnVolume(&v.Spec)
	}
	for _, class := range o.Classes {
		c.add(class.Parameters)
	}
	for _, class := range o.SnapshotClasses {
		c.add(class.Parameters)
	}
	c.learnGroups(o.Groups, o.GroupClasses)
	for _, a := range o.Attachments {
		c.add(a.Status.AttachmentMetadata)
		if a.Spec.Source.InlineVolumeSpec != nil {
			c.learnVolume(a.Spec.Source.InlineVolumeSpec)
		}
	}
	for _, p := range o.Pods {
		for i := range p.Spec.Volumes {
			v := &p.Spec.Volumes[i]
			if v.CSI != nil {
				c.add(v.CSI.VolumeAttributes)
			}
			c.add(note.OptionsInline(v))
		}
	}
	for _, in := range o.Begun {
		c.add(in.Parameters)
		c.add(in.Mutable)
	}
}

func (c cleaner) learnVolume(spec *corev1.PersistentVolumeSpec) {
	if spec.CSI != nil {
		c.add(spec.CSI.VolumeAttributes)
	}
	c.add(note.Options(spec))
}

func (c cleaner) add(attributes map[string]string) {
	for name, value := range attributes {
		if len(value) >= shortestSecret && secretName(name) {
			c.secrets.Add(value)
		}
	}
}

// secretName says whether an attribute's name promises a secret. The name of a Secret
// is none.
func secretName(name string) bool {
	plain := strings.ToLower(strings.NewReplacer("-", "", "_", "", ".", "", "/", "", " ", "").Replace(name))
	if strings.HasSuffix(plain, "secretname") || strings.HasSuffix(plain, "secretnamespace") {
		return false
	}
	for _, word := range []string{
		"secret", "passw", "pwd", "passphrase", "token", "credential", "key", "auth", "private", "cert", "signature",
		"cookie", "session",
		"bearer", "sas", "pin",
	} {
		if strings.Contains(plain, word) {
			return true
		}
	}
	return false
}

// text returns a text without secrets.
func (c cleaner) text(s string) string {
	if s == "" {
		return ""
	}
	if clean, known := c.done[s]; known {
		return clean
	}
	clean := s
	for _, f := range c.forms {
		clean = f.like.ReplaceAllString(clean, f.by)
	}
	c.done[s] = c.secrets.Hide(clean)
	return c.done[s]
}

func (c cleaner) texts(all []string) []string {
	var out []string
	for _, s := range all {
		out = append(out, c.text(s))
	}
	return out
}

func (c cleaner) attributes(all map[string]string) map[string]string {
	var out map[string]string
	for name, value := range all {
		if out == nil {
			out = map[string]string{}
		}
		out[name] = c.text(value)
		if secretName(name) {
			out[name] = redact.Hidden
		}
	}
	return out
}

func (c cleaner) meta(m *metav1.ObjectMeta) metav1.ObjectMeta {
	out := metav1.ObjectMeta{
		Name: m.Name, Namespace: m.Namespace, UID: m.UID, CreationTimestamp: m.CreationTimestamp,
		DeletionTimestamp:          m.DeletionTimestamp,
		DeletionGracePeriodSeconds: m.DeletionGracePeriodSeconds, Finalizers: m.Finalizers,
		OwnerReferences: m.OwnerReferences,
	}
	for name, value := range m.Annotations {
		if !keptAnnotation(name) {
			continue
		}
		if out.Annotations == nil {
			out.Annotations = map[string]string{}
		}
		out.Annotations[name] = c.text(value)
	}
	return out
}

// keptAnnotation says whether an annotation is ours or one that volumes go by, and not
// one that holds what a user has written.
func keptAnnotation(name string) bool {
	switch name {
	case volume.AnnMountOptions, volume.AnnMigratedFrom, volume.AnnSnapshotParameters:
		return false
	}
	domain, _, _ := strings.Cut(name, "/")
	return slices.Contains([]string{
		"volplane.dev", "pv.kubernetes.io", "volume.kubernetes.io", "volume.beta.kubernetes.io", "volume.alpha.kubernetes.io",
		"volumes.kubernetes.io", "storageclass.kubernetes.io", "storageclass.beta.kubernetes.io", "csi.alpha.kubernetes.io",
		"csi.volume.kubernetes.io", "snapshot.storage.kubernetes.io", "groupsnapshot.storage.kubernetes.io",
		volume.GroupGroupSnapshot,
	}, domain)
}

func (c cleaner) namespace(n *corev1.Namespace) *corev1.Namespace {
	out := &corev1.Namespace{ObjectMeta: c.meta(&n.ObjectMeta), Status: corev1.NamespaceStatus{Phase: n.Status.Phase}}
	for _, cond := range n.Status.Conditions {
		cond.Message = c.text(cond.Message)
		out.Status.Conditions = append(out.Status.Conditions, cond)
	}
	return out
}

func (c cleaner) class(s *storagev1.StorageClass) *storagev1.StorageClass {
	return &storagev1.StorageClass{
		ObjectMeta: c.meta(&s.ObjectMeta), Provisioner: s.Provisioner, Parameters: c.attributes(s.Parameters),
		ReclaimPolicy: s.ReclaimPolicy,
		MountOptions:  c.texts(s.MountOptions), AllowVolumeExpansion: s.AllowVolumeExpansion,
		VolumeBindingMode: s.VolumeBindingMode,
		AllowedTopologies: s.AllowedTopologies,
	}
}

func (c cleaner) driver(d *storagev1.CSIDriver) *storagev1.CSIDriver {
	return &storagev1.CSIDriver{ObjectMeta: c.meta(&d.ObjectMeta), Spec: d.Spec}
}

func (c cleaner) csiNode(n *storagev1.CSINode) *storagev1.CSINode {
	out := &storagev1.CSINode{ObjectMeta: c.meta(&n.ObjectMeta), Spec: n.Spec}
	for _, h := range n.Status.StorageHealth {
		var kept []storagev1.StorageHealthCondition
		for _, s := range h.HealthConditions {
			s.Reason, s.Message = c.text(s.Reason), c.text(s.Message)
			kept = append(kept, s)
		}
		h.HealthConditions = kept
		out.Status.StorageHealth = append(out.Status.StorageHealth, h)
	}
	return out
}

func (c cleaner) lease(l *coordinationv1.Lease) *coordinationv1.Lease {
	return &coordinationv1.Lease{ObjectMeta: c.meta(&l.ObjectMeta), Spec: l.Spec}
}

func (c cleaner) event(e *corev1.Event) *corev1.Event {
	return &corev1.Event{
		ObjectMeta: c.meta(&e.ObjectMeta), InvolvedObject: e.InvolvedObject, Reason: e.Reason, Message: c.text(e.Message),
		Type:           e.Type,
		FirstTimestamp: e.FirstTimestamp, LastTimestamp: e.LastTimestamp, EventTime: e.EventTime, Count: e.Count,
		Series: e.Series,
		Source: e.Source, ReportingController: e.ReportingController, ReportingInstance: e.ReportingInstance,
	}
}

func (c cleaner) intent(in *provision.Intent) *provision.Intent {
	return &provision.Intent{
		Driver: in.Driver, Claim: in.Claim, Name: in.Name, Bytes: in.Bytes, Parameters: c.attributes(in.Parameters),
		Modes: in.Modes,
		Block: in.Block, Class: in.Class, Reclaim: in.Reclaim, Begun: in.Begun,
		Source: in.Source, Snapshot: in.Snapshot, SourceName: in.SourceName,
	}
}

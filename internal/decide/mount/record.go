package mount

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"volplane.dev/volplane/internal/volume"
)

// Phase is the state of one step. In phases that end in "ing" the call may have had its effect: it is
// repeated or undone, never forgotten.
type Phase string

// The phases of staging, of publishing, and of the bind at a host path. The
// empty phase means that there is nothing.
const (
	Staging      Phase = "staging"
	Staged       Phase = "staged"
	Unstaging    Phase = "unstaging"
	Publishing   Phase = "publishing"
	Published    Phase = "published"
	Unpublishing Phase = "unpublishing"
	Binding      Phase = "binding"
	Bound        Phase = "bound"
	Unbinding    Phase = "unbinding"
)

// SecretRef names a Secret.
type SecretRef struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

// Record is what is needed to unmount one volume from one node, even if every object in the API is
// gone.
type Record struct {
	Driver string `json:"driver"`
	Handle string `json:"handle"`
	// Volume is the name of the PersistentVolume with which the volume is staged; if it is not staged, that of the first
	// with which it was published.
	Volume string `json:"volume"`
	Block  bool   `json:"block,omitempty"`
	// Ephemeral says that a Pod itself named the volume; Volume is its name in
	// the Pod then.
	Ephemeral bool `json:"ephemeral,omitempty"`
	// PublishContext is the publish context of the driver's calls.
	PublishContext map[string]string `json:"publishContext,omitempty"`
	// Attachment is the UID of the VolumeAttachment that the volume was last
	// mounted by; empty for one that is not attached.
	Attachment    string     `json:"attachment,omitempty"`
	StageSecret   *SecretRef `json:"stageSecret,omitempty"`
	PublishSecret *SecretRef `json:"publishSecret,omitempty"`
	GrowSecret    *SecretRef `json:"growSecret,omitempty"`
	// MoreSecrets are those of other PersistentVolumes with the handle.
	MoreSecrets []SecretRef `json:"moreSecrets,omitempty"`
	// SecretsUnknown means that the driver may have received Secrets that are not recorded: the record was rebuilt after
	// the volume's object was gone.
	SecretsUnknown bool `json:"secretsUnknown,omitempty"`
	// Label is the SELinux label that the volume was mounted with; empty if it has none. LabelUnknown means that the
	// record was rebuilt without knowing the label.
	Label        string `json:"seLinuxLabel,omitempty"`
	LabelUnknown bool   `json:"seLinuxLabelUnknown,omitempty"`
	// Stage is empty for a driver that does not stage.
	Stage Phase `json:"stage,omitempty"`
	// UnstageRefused describes the driver's last answer to NodeUnstageVolume. It is not written to the journal, because
	// after a crash it is unknown whether a call is still in flight.
	UnstageRefused bool   `json:"-"`
	StagingPath    string `json:"stagingPath,omitempty"`
	// StagingMounted says that the mount table showed StagingPath after the
	// driver had staged. Not every driver mounts there.
	StagingMounted bool `json:"stagingMounted,omitempty"`
	// Filesystem is the type and source of what was mounted at StagingPath.
	Filesystem string `json:"filesystem,omitempty"`
	// Short means that the filesystem at StagingPath was copied from a smaller volume and has not been grown yet.
	Short   bool     `json:"short,omitempty"`
	Targets []Target `json:"targets,omitempty"`
	// Lost is how Pods have lost the volume, by the paths of the targets that have not been restored.
	Lost map[string]Loss `json:"lost,omitempty"`
	// ExpandRefused is the largest size to which the driver refuses to expand the volume as it is mounted now; 0 if it has
	// not refused.
	ExpandRefused int64 `json:"growRefused,omitempty"`
	// Boot names the boot of the host in which the phases were reached.
	Boot string `json:"boot,omitempty"`
}

// Target is one place where the volume is published to one Pod.
type Target struct {
	PodUID       string `json:"podUID"`
	PodNamespace string `json:"podNamespace"`
	PodName      string `json:"podName"`
	Path         string `json:"path"`
	ReadOnly     bool   `json:"readOnly,omitempty"`
	Phase        Phase  `json:"phase"`
	// Filesystem is the type and source of the mount at Path when it was published; empty if unknown.
	Filesystem string `json:"filesystem,omitempty"`
	// Mounts is how many paths, at Path and below it, something was mounted at
	// when it was published; 0 is one at most.
	Mounts int `json:"mounts,omitempty"`
	// HostPath is a directory of the host at which the target is bind-mounted; empty if there is none.
	HostPath  string `json:"hostPath,omitempty"`
	HostPhase Phase  `json:"hostPhase,omitempty"`
	// HostDevice has the device numbers of the filesystem that was bound there and of the mounts below it, separated by
	// blanks. The target may show others since.
	HostDevice string `json:"hostDevice,omitempty"`
}

// AddSecrets records which Secrets the driver receives for a volume by one of its objects.
func (r *Record) AddSecrets(pv *corev1.PersistentVolume) {
	s := pv.Spec.CSI
	for _, x := range []struct {
		at  **SecretRef
		ref *corev1.SecretReference
	}{
		{&r.StageSecret, s.NodeStageSecretRef},
		{&r.PublishSecret, s.NodePublishSecretRef},
		{&r.GrowSecret, s.NodeExpandSecretRef},
	} {
		if x.ref == nil {
			continue
		}
		ref := SecretRef{Namespace: x.ref.Namespace, Name: x.ref.Name}
		if *x.at == nil {
			*x.at = &ref
		} else if !slices.Contains(r.Secrets(), ref) {
			r.MoreSecrets = append(r.MoreSecrets, ref)
		}
	}
	r.SecretsUnknown = r.SecretsUnknown && pv.Name != r.Volume
}

// Secrets returns the Secrets that the driver has received.
func (r *Record) Secrets() []SecretRef {
	out := slices.Clone(r.MoreSecrets)
	for _, ref := range []*SecretRef{r.StageSecret, r.PublishSecret, r.GrowSecret} {
		if ref != nil {
			out = append(out, *ref)
		}
	}
	return out
}

// Empty says that nothing of the volume is mounted.
func (r *Record) Empty() bool { return r == nil || r.Stage == "" && len(r.Targets) == 0 }

// Key returns the volume's key.
func (r *Record) Key() string { return volume.Key(r.Driver, r.Handle) }

// Target returns the target at a path, or nil.
func (r *Record) Target(path string) *Target {
	if r == nil {
		return nil
	}
	for i := range r.Targets {
		if r.Targets[i].Path == path {
			return &r.Targets[i]
		}
	}
	return nil
}

// Attempted returns where the driver was last called to publish a volume that is published nowhere; it is empty if
// those calls had no effect. ok is false while the volume is being removed.
func (r *Record) Attempted() (path string, ok bool) {
	for _, t := range r.Targets {
		switch t.Phase {
		case Publishing:
			path = t.Path
		case Unpublishing:
			return "", false
		}
	}
	return path, r.Stage != Unstaging
}

// Serves says whether a target is mounted as its Pod requests: published, and bound at the host path, if any.
func (t *Target) Serves(host string) bool {
	return t != nil && t.Phase == Published && (host == "" || t.HostPhase == Bound && t.HostPath == host)
}

// Clone returns a copy whose targets and losses can be changed.
func (r *Record) Clone() *Record {
	if r == nil {
		return nil
	}
	c := *r
	c.Targets, c.Lost, c.MoreSecrets = slices.Clone(r.Targets), maps.Clone(r.Lost), slices.Clone(r.MoreSecrets)
	return &c
}

// Uncertain returns the record with the phases of steps that may have to be repeated or undone. A boot
// removes all mounts, but a driver may still remember its part.
func (r *Record) Uncertain() *Record {
	c := r.Clone()
	c.StagingMounted, c.Filesystem, c.Lost = false, "", nil
	if c.Stage == Staged {
		c.Stage = Staging
	}
	for i := range c.Targets {
		t := &c.Targets[i]
		if t.Phase == Published {
			t.Phase = Publishing
		}
		if t.HostPhase == Bound {
			t.HostPhase = Binding
		}
		t.HostDevice, t.Filesystem = "", ""
	}
	return c
}

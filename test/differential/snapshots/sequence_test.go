package snapshots

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/volume"
	"volplane.dev/volplane/test/internal/differential"
	"volplane.dev/volplane/test/internal/upstream"
)

// These are drivers of volumes and classes, in addition to the one that both sides call.
const (
	// nobodys is a driver that no program calls.
	nobodys = "nobodys.csi.example.com"
	// ownDriver is not called either, and each sequence has its own: a default class applies to all claims
	// of its driver.
	ownDriver = "own"
	// noDriver is that of a volume that is not a CSI volume.
	noDriver = "none"
)

// driverOf returns the name of a driver in a sequence.
func driverOf(space, driver string) string {
	if driver == ownDriver {
		_, sequence, _ := strings.Cut(space, "-")
		return ownDriver + "." + sequence + ".example.com"
	}
	return driver
}

// snapshotDice draws the sequences about snapshots.
type snapshotDice struct {
	*dice
	shots, contents, handles, restores int
}

// drawSnapshots draws actions of users, administrators and drivers on snapshots.
func drawSnapshots(seed uint64, length int) sequence {
	d := &snapshotDice{dice: differential.NewDice(seed)}
	s := sequence{Seed: seed, Ops: []op{
		d.NewSecret("s0"), d.class("a", differential.DriverName), d.class("b", d.classDriver()), d.newClaim(),
	}}
	if d.IntN(3) == 0 {
		s.Ops = append(s.Ops, d.newMood())
	}
	for len(s.Ops) < length+5 {
		s.Ops = append(s.Ops, d.op())
	}
	return s
}

func (d *snapshotDice) op() op {
	return d.OneOf([]differential.Weighted{
		{Often: 9, Draw: d.newSnapshot},
		{Often: 5, Draw: func() op { return deleteSnapshot(d.shot()) }},
		{Often: 3, Draw: d.newContent},
		{Often: 3, Draw: d.newSnapshotOf},
		{Often: 2, Draw: func() op { return deleteContent(d.content()) }},
		{Often: 2, Draw: func() op { return d.changePolicy(d.content()) }},
		{Often: 1, Draw: func() op { return d.freeContent(d.content()) }},
		{Often: 2, Draw: d.newClaim},
		{Often: 1, Draw: func() op { return bindLater(d.anyClaim(), differential.DriverName) }},
		{Often: 2, Draw: func() op { return differential.DeleteClaim(d.anyClaim()) }},
		{Often: 1, Draw: func() op { return differential.ReleaseClaim(d.anyClaim()) }},
		{Often: 1, Draw: func() op { return differential.LoseVolume(strings.Replace(d.anyClaim(), "c", "v", 1)) }},
		{Often: 1, Draw: d.newRestore},
		{Often: 1, Draw: func() op { return endRestore(fmt.Sprint("r", d.IntN(d.restores+1))) }},
		{Often: 2, Draw: d.changeClass},
		{Often: 1, Draw: func() op { return setDefault(differential.Pick(d, "a", "b"), d.IntN(2) == 0) }},
		{Often: 3, Draw: func() op { return d.AttachFault("CreateSnapshot") }},
		{Often: 2, Draw: func() op { return d.AttachFault("DeleteSnapshot") }},
		{Often: 1, Draw: func() op { return d.AttachFault("ListSnapshots") }},
		{Often: 3, Draw: func() op { return differential.Heal(d.Int()) }},
		{Often: 3, Draw: d.newMood},
		{Often: 2, Draw: d.ChangeSecret},
	})
}

func (d *snapshotDice) shot() string     { return fmt.Sprint("s", d.IntN(d.shots+1)) }
func (d *snapshotDice) anyClaim() string { return fmt.Sprint("c", d.IntN(d.Claims+1)) }

// content returns a content by the name of its snapshot, or by its own if a user created it.
func (d *snapshotDice) content() string {
	if d.IntN(3) == 0 {
		return d.shot()
	}
	return fmt.Sprint("k", d.IntN(d.contents+1))
}

func (d *snapshotDice) classDriver() string {
	if d.IntN(7) == 0 {
		return ownDriver
	}
	return differential.DriverName
}

// class creates a class of a driver.
func (d *snapshotDice) class(name, driver string) op {
	c := differential.SnapshotClass{
		Name: name, Driver: driver, Policy: differential.Pick(d, "Delete", "Delete", "Retain"), IsDefault: d.IntN(3) == 0,
		Parameters: map[string]any{"copies": fmt.Sprint(d.IntN(3))},
	}
	secret := func(purpose string) {
		c.Parameters["csi.storage.k8s.io/"+purpose+"-secret-name"] = differential.Pick(d, "s0", "s0", "s1",
			"${volumesnapshot.name}")
		c.Parameters["csi.storage.k8s.io/"+purpose+"-secret-namespace"] = "${volumesnapshot.namespace}"
	}
	switch d.IntN(8) {
	case 0, 1:
		secret("snapshotter")
	case 2:
		secret("snapshotter-list")
		c.Parameters["csi.storage.k8s.io/snapshotter-list-secret-name"] = differential.Pick(d, "s0", "s1")
		c.Parameters["csi.storage.k8s.io/snapshotter-list-secret-namespace"] = "space"
	case 3:
		if d.IntN(2) == 0 {
			c.Parameters["csi.storage.k8s.io/unknown"] = "x"
		}
	}
	return newSnapshotClass(c)
}

func newSnapshotClass(c differential.SnapshotClass) op {
	text := fmt.Sprintf("make class %s of %s: %s, default %v, %v", c.Name, c.Driver, c.Policy, c.IsDefault, c.Parameters)
	return op{Text: text, Do: func(ctx context.Context, s side, space string) error {
		of := c
		of.Name, of.Driver, of.Parameters = space+"-"+c.Name, driverOf(space, c.Driver), map[string]any{}
		for k, v := range c.Parameters {
			if of.Parameters[k] = v; v == "space" {
				of.Parameters[k] = space
			}
		}
		return s.MakeClass(ctx, of)
	}}
}

func (d *snapshotDice) changeClass() op {
	name := differential.Pick(d, "a", "b", "b")
	if d.IntN(2) == 0 {
		return d.class(name, d.classDriver())
	}
	return deleteClass(name)
}

func deleteClass(name string) op {
	return op{Text: "delete class " + name, Do: func(ctx context.Context, s side, space string) error {
		return s.Dynamic.Resource(upstream.SnapshotClasses()).Delete(ctx, space+"-"+name, metav1.DeleteOptions{})
	}}
}

func setDefault(name string, is bool) op {
	return op{
		Text: fmt.Sprintf("class %s is the default: %v", name, is),
		Do: func(ctx context.Context, s side, space string) error {
			patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:"%t"}}}`, volume.AnnDefaultSnapshotClass, is)
			_, err := s.Dynamic.Resource(upstream.SnapshotClasses()).Patch(ctx, space+"-"+name, types.MergePatchType, patch,
				metav1.PatchOptions{})
			return err
		},
	}
}

// newClaim creates a claim, and usually a volume bound to it.
func (d *snapshotDice) newClaim() op {
	name := fmt.Sprint("c", d.Claims)
	d.Claims++
	return newBoundClaim(name, differential.Pick(d, differential.DriverName, differential.DriverName,
		differential.DriverName, differential.DriverName, differential.DriverName, differential.DriverName,
		differential.DriverName, ownDriver, noDriver, ""))
}

// newBoundClaim creates a claim that is bound to a volume of a driver, or unbound if driver is "".
func newBoundClaim(name, driver string) op {
	bind := bindLater(name, driver)
	return op{Text: "make claim " + name, Do: func(ctx context.Context, s side, space string) error {
		if _, err := s.Client.CoreV1().PersistentVolumeClaims(space).Create(ctx, upstream.ClaimOf(name, ""),
			metav1.CreateOptions{}); err != nil || driver == "" {
			return err
		}
		return bind.Do(ctx, s, space)
	}}.And(", " + bind.Text)
}

// bindLater binds a claim to a new volume of a driver.
func bindLater(name, driver string) op {
	return op{Text: fmt.Sprintf("bind %s to a volume of %q", name, driver), Do: func(
		ctx context.Context, s side, space string,
	) error {
		v := differential.CSIVolume(space+"-"+strings.Replace(name, "c", "v", 1), driverOf(space, driver),
			corev1.ReadWriteOnce)
		if driver == noDriver {
			v.Spec.CSI, v.Spec.HostPath = nil, &corev1.HostPathVolumeSource{Path: "/none"}
		}
		return s.BindClaim(ctx, space, name, v)
	}}
}

// newSnapshot creates a snapshot of a claim.
func (d *snapshotDice) newSnapshot() op {
	name := fmt.Sprint("s", d.shots)
	d.shots++
	return newShot(name, differential.Pick(d, "c0", d.anyClaim()),
		differential.Pick(d, "a", "a", "a", "b", "b", "", "", "missing"))
}

// newShot creates a snapshot of a claim with a class; "" means no class.
func newShot(name, claim, class string) op {
	return op{
		Text: fmt.Sprintf("make snapshot %s of claim %s with class %q", name, claim, class),
		Do: func(ctx context.Context, s side, space string) error {
			return createSnapshot(ctx, s, space, name, class, map[string]any{"persistentVolumeClaimName": claim})
		},
	}
}

// newSnapshotOf creates a snapshot of a content that a user has created, or creates that content.
func (d *snapshotDice) newSnapshotOf() op {
	name := fmt.Sprint("s", d.shots)
	if d.IntN(3) > 0 || d.shots == 0 {
		d.shots++
	} else {
		name = fmt.Sprint("s", d.IntN(d.shots))
	}
	return newShotOf(name, fmt.Sprint("k", d.IntN(d.contents+1)), differential.Pick(d, "", "", "", "a", "missing"))
}

func newShotOf(name, content, class string) op {
	return op{
		Text: fmt.Sprintf("make snapshot %s of content %s with class %q", name, content, class),
		Do: func(ctx context.Context, s side, space string) error {
			return createSnapshot(ctx, s, space, name, class,
				map[string]any{"volumeSnapshotContentName": contentOf(s, space, content)})
		},
	}
}

func createSnapshot(ctx context.Context, s side, space, name, class string, source map[string]any) error {
	spec := map[string]any{"source": source}
	if class != "" {
		spec["volumeSnapshotClassName"] = space + "-" + class
	}
	_, err := s.Dynamic.Resource(upstream.Snapshots()).Namespace(space).Create(ctx,
		upstream.Object("VolumeSnapshot", name, spec),
		metav1.CreateOptions{})
	return err
}

func deleteSnapshot(name string) op {
	return op{Text: "delete snapshot " + name, Do: func(ctx context.Context, s side, space string) error {
		return s.Dynamic.Resource(upstream.Snapshots()).Namespace(space).Delete(ctx, name, metav1.DeleteOptions{})
	}}
}

// givenContent is a content that a user creates.
type givenContent struct {
	name, snapshot, handle, policy, class, driver string
	// uid is that of the snapshot; volume is the source instead of the handle.
	uid, volume string
}

func (d *snapshotDice) newContent() op {
	c := givenContent{
		name: fmt.Sprint("k", d.contents), snapshot: fmt.Sprint("s", d.IntN(d.shots+2)),
		policy: differential.Pick(d, "Delete", "Retain"), class: differential.Pick(d, "", "", "", "", "", "a", "a",
			"missing"),
		driver: differential.Pick(d, differential.DriverName, differential.DriverName, differential.DriverName,
			differential.DriverName, nobodys), handle: fmt.Sprint("h", d.handles),
	}
	switch d.IntN(8) {
	case 0:
		c.uid = "11111111-2222-3333-4444-555555555555"
	case 1:
		c.handle = "h9"
	case 2:
		c.handle = fmt.Sprint("h", d.IntN(d.handles+1))
	case 3:
		c.volume, c.uid = "v0", differential.Pick(d, "", "22222222-2222-3333-4444-555555555555")
	default:
		d.handles++
	}
	d.contents++
	return newGivenContent(c)
}

// newGivenContent creates a content for a snapshot of the driver, which exists unless its name is h9.
func newGivenContent(c givenContent) op {
	return op{Text: fmt.Sprintf("make content %+v", c), Do: func(ctx context.Context, s side, space string) error {
		if c.handle != "h9" && c.volume == "" {
			if err := takeByHand(ctx, s, space, c.handle); err != nil {
				return err
			}
		}
		ref := map[string]any{"kind": "VolumeSnapshot", "namespace": space, "name": c.snapshot}
		if c.uid != "" {
			ref["uid"] = c.uid
		}
		spec := map[string]any{
			"driver": c.driver, "deletionPolicy": c.policy, "volumeSnapshotRef": ref,
			"source": map[string]any{"snapshotHandle": "id-" + space + "-" + c.handle},
		}
		if c.volume != "" {
			spec["source"] = map[string]any{"volumeHandle": "id-" + space + "-" + c.volume}
		}
		if c.class != "" {
			spec["volumeSnapshotClassName"] = space + "-" + c.class
		}
		_, err := s.Dynamic.Resource(upstream.SnapshotContents()).Create(ctx,
			upstream.Object("VolumeSnapshotContent", space+"-"+c.name, spec),
			metav1.CreateOptions{})
		return err
	}}
}

func deleteContent(name string) op {
	return op{Text: "delete the content " + name, Do: func(ctx context.Context, s side, space string) error {
		return s.Dynamic.Resource(upstream.SnapshotContents()).Delete(ctx, contentOf(s, space, name), metav1.DeleteOptions{})
	}}
}

func (d *snapshotDice) changePolicy(name string) op {
	return setPolicy(name, differential.Pick(d, "Delete", "Retain", "Retain"))
}

func setPolicy(name, policy string) op {
	return changeContent(name, "policy "+policy, fmt.Sprintf(`{"spec":{"deletionPolicy":%q}}`, policy))
}

// freeContent gives a content, which its snapshot may have given up, to another snapshot.
func (d *snapshotDice) freeContent(name string) op {
	snapshot := fmt.Sprint("s", d.IntN(d.shots+2))
	return changeContent(name, "for snapshot "+snapshot,
		fmt.Sprintf(`{"spec":{"volumeSnapshotRef":{"name":%q,"uid":null}}}`, snapshot))
}

func changeContent(name, what, patch string) op {
	return op{
		Text: "change the content " + name + ": " + what,
		Do: func(ctx context.Context, s side, space string) error {
			return upstream.Unmet(func() error {
				_, err := s.Dynamic.Resource(upstream.SnapshotContents()).Patch(ctx, contentOf(s, space, name),
					types.MergePatchType,
					[]byte(patch), metav1.PatchOptions{})
				return err
			})
		},
	}
}

// newRestore creates a claim with a snapshot as its source.
func (d *snapshotDice) newRestore() op {
	name := fmt.Sprint("r", d.restores)
	d.restores++
	return restore(name, d.shot())
}

func restore(name, snapshot string) op {
	return op{
		Text: "make claim " + name + " from snapshot " + snapshot,
		Do: func(ctx context.Context, s side, space string) error {
			c := upstream.ClaimOf(name, "")
			c.Spec.DataSource = &corev1.TypedLocalObjectReference{
				APIGroup: ptr.To(volume.GroupSnapshot), Kind: volume.KindSnapshot, Name: snapshot,
			}
			_, err := s.Client.CoreV1().PersistentVolumeClaims(space).Create(ctx, c, metav1.CreateOptions{})
			return err
		},
	}
}

func endRestore(name string) op {
	bind := bindLater(name, nobodys)
	return op{Text: bind.Text, Do: bind.Do}
}

func (d *snapshotDice) newMood() op {
	m := differential.Mood{
		Unready: d.IntN(2) == 0, Untimed: d.IntN(10) == 0,
		Size: differential.Pick(d, int64(0), 0, 1, -1),
	}
	return newMood(m, d.Int())
}

func newMood(m differential.Mood, mark int) op {
	return op{
		Text: "let the driver tell of snapshots: " + m.String(),
		Do: func(ctx context.Context, s side, space string) error {
			s.Storage.SetMood(space, m)
			return s.Topic.Touch(ctx, s, space, mark)
		},
	}
}

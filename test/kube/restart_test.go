package kube

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/testkit"
	"volplane.dev/volplane/internal/volume"
)

// restartEvery is the number of batches of which one restarts the controllers. A restart affects all
// sequences of a batch and takes seconds.
const restartEvery = 2

// anew says how controllers are restarted around a step.
type anew int

const (
	noRestart anew = iota
	// meanwhile: users do things while no controller runs.
	meanwhile
	// immediately: the controllers end as soon as users have done things.
	immediately
	// beforehand and afterwards: they end when drivers have been asked, and
	// have or have not done their work, and have not answered.
	beforehand
	afterwards
	// withoutAttach and withAttach: the driver says afterwards that it needs no
	// attaching, or that it does; no controller is started anew.
	withoutAttach
	withAttach
)

func (r anew) String() string {
	return []string{
		"", ", while the controllers do not run, and start them", ", and start the controllers anew at once",
		", and start the controllers anew when calls have got no answer, and nothing is done",
		", and start the controllers anew when calls have got no answer, but all is done",
		", and have the driver say that it needs no attaching", ", and have the driver say that it needs attaching",
	}[r]
}

// silences says whether drivers do not answer before the controllers end.
func (r anew) silences() bool { return r == beforehand || r == afterwards }

// restarted returns the sequence with the restarts of its batch. They are at the same steps in all
// sequences, one of each kind.
func (s sequence) restarted() sequence {
	block := s.seed / batch
	if block%restartEvery != 0 {
		return s
	}
	const first, last = 4, length + 2
	for i, step := range newRand(block).Perm(last - first)[:len(restarts())] {
		s.ops[first+step].restart = restarts()[i]
	}
	return s
}

func restarts() []anew { return []anew{meanwhile, immediately, beforehand, afterwards} }

// restartAt returns how controllers are restarted around a step.
func restartAt(all []sequence, step int) anew {
	if step < 0 || step >= len(all[0].ops) {
		return noRestart
	}
	return all[0].ops[step].restart
}

// restartedAlike groups sequences whose restarts are at the same steps.
func restartedAlike(all []sequence) [][]sequence {
	when := func(s sequence) string {
		text := fmt.Sprint(len(s.ops))
		for _, o := range s.ops {
			text += fmt.Sprint(" ", int(o.restart))
		}
		return text
	}
	slices.SortStableFunc(all, func(a, b sequence) int {
		return cmp.Or(cmp.Compare(len(a.ops), len(b.ops)), cmp.Compare(when(a), when(b)))
	})
	var out [][]sequence
	for i, s := range all {
		if i == 0 || when(s) != when(all[i-1]) {
			out = append(out, nil)
		}
		out[len(out)-1] = append(out[len(out)-1], s)
	}
	return out
}

// life has the controllers of a side, which can be stopped and started.
type life struct {
	starts []func() (stop func())
	stops  []func()
	// ended is when they were stopped last.
	ended time.Time
}

// startController starts a controller, and starts it again at each restart.
func (s side) startController(start func() (stop func())) {
	s.life.starts = append(s.life.starts, start)
	s.life.stops = append(s.life.stops, start())
}

func (l *life) end() {
	for _, stop := range l.stops {
		stop()
	}
	l.stops, l.ended = nil, time.Now()
}

func (l *life) resume() {
	for _, start := range l.starts {
		l.stops = append(l.stops, start())
	}
}

// around plays a step, and restarts the controllers as how says.
func (d *differential) around(ctx context.Context, how anew, do func() error) error {
	switch how {
	case noRestart:
		return do()
	case withoutAttach, withAttach:
		if err := do(); err != nil {
			return err
		}
		if err := d.awake(ctx); err != nil {
			return err
		}
		if _, err := d.rest(ctx); err != nil {
			return err
		}
		return d.both(func(s side) error { return s.needsAttach(ctx, how == withAttach) })
	}
	begin := time.Now()
	if how == meanwhile {
		d.end()
	}
	d.silence(how)
	if err := do(); err != nil {
		return err
	}
	if how.silences() {
		if _, err := d.rest(ctx); err != nil {
			return err
		}
	}
	d.end()
	d.silence(noRestart)
	for _, s := range d.sides {
		s.life.resume()
	}
	d.restarts++
	err := d.awake(ctx)
	d.restarting += time.Since(begin)
	return err
}

func (d *differential) end() {
	for _, s := range d.sides {
		s.life.end()
	}
}

func (d *differential) silence(how anew) {
	for _, s := range d.sides {
		s.storage.keepSilent(how)
	}
}

// awake waits until all controllers of a side have done something.
func (s side) awake(ctx context.Context, name string) error {
	switch {
	case s.attaching:
		return s.awakeAttaching(ctx, name)
	case s.snapshotting:
		return s.awakeSnapshotting(ctx, name)
	case s.modifying:
		return s.awakeModifying(ctx, name)
	}
	return s.awakeBinding(ctx, name)
}

// awakeBinding creates a claim and its volume, and deletes them when they are bound.
func (s side) awakeBinding(ctx context.Context, name string) error {
	if err := s.makePair(ctx, name); err != nil {
		return err
	}
	claims, volumes := s.client.CoreV1().PersistentVolumeClaims("default"), s.client.CoreV1().PersistentVolumes()
	var v string
	err := poll(ctx, func() (bool, error) {
		c, err := claims.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		v = c.Spec.VolumeName
		return c.Status.Phase == corev1.ClaimBound, nil
	})
	if err != nil {
		return fmt.Errorf("%s does not bind: %w", s.name, err)
	}
	if err := claims.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		return err
	}
	err = poll(ctx, func() (bool, error) {
		v, err := volumes.Get(ctx, v, metav1.GetOptions{})
		if err == nil && v.Status.Phase == corev1.VolumeReleased && v.DeletionTimestamp == nil && s.storage.driver == nil {
			err = volumes.Delete(ctx, v.Name, metav1.DeleteOptions{})
		}
		if err != nil && !refused(err) {
			return false, err
		}
		return err != nil, nil
	})
	if err != nil {
		return fmt.Errorf("%s does not delete: %w", s.name, err)
	}
	return nil
}

// makePair creates a claim, and a volume for it unless a provisioner does.
func (s side) makePair(ctx context.Context, name string) error {
	claim := claimOf(name, name)
	class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: driverName}
	if s.storage.driver == nil {
		class.Provisioner = volume.NoProvisioner
		v := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PersistentVolumeSpec{
			Capacity:    corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
			AccessModes: claim.Spec.AccessModes, StorageClassName: name,
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
		}}
		v.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: driverName, VolumeHandle: name}
		if _, err := s.client.CoreV1().PersistentVolumes().Create(ctx, v, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	if _, err := s.client.StorageV1().StorageClasses().Create(ctx, class, metav1.CreateOptions{}); err != nil {
		return err
	}
	_, err := s.client.CoreV1().PersistentVolumeClaims("default").Create(ctx, claim, metav1.CreateOptions{})
	return err
}

// poll repeats a question until the answer is true.
func poll(ctx context.Context, done func() (bool, error)) error {
	var broken error
	err := testkit.Until(ctx, testkit.Unless("it is not done", func() (ok bool) {
		ok, broken = done()
		return ok || broken != nil
	}))
	return cmp.Or(err, broken)
}

package differential

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

	"volplane.dev/volplane/internal/volume"
	"volplane.dev/volplane/test/internal/upstream"
)

// restartEvery is the number of batches, one of which restarts the controllers. A restart affects all sequences of a
// batch and takes seconds.
const restartEvery = 2

// restart is how controllers are restarted around a step.
type restart int

const (
	noRestart restart = iota
	// With stopped, users act while no controller runs.
	stopped
	// With immediately, the controllers end right after the actions of users.
	immediately
	// With beforehand and afterwards, they end when drivers have been called and have not answered, before or after they
	// have done their work.
	beforehand
	afterwards
	// WithoutAttach makes the driver declare afterwards that it needs no attaching; no controller is restarted.
	WithoutAttach
	// WithAttach makes it declare that it does.
	WithAttach
)

func (r restart) String() string {
	return []string{
		"", ", while the controllers do not run, and start them", ", and restart the controllers immediately",
		", and restart the controllers while calls are unanswered, and nothing is done",
		", and restart the controllers while calls are unanswered, but all is done",
		", and have the driver say that it needs no attaching", ", and have the driver say that it needs attaching",
	}[r]
}

// silences says whether drivers do not answer before the controllers end.
func (r restart) silences() bool { return r == beforehand || r == afterwards }

// restarted returns the sequence with the restarts of its batch. They are at the same steps in all
// sequences, one of each kind.
func (s Sequence) restarted() Sequence {
	block := s.Seed / Batch
	if block%restartEvery != 0 {
		return s
	}
	const first, last = 4, Length + 2
	for i, step := range NewRand(block).Perm(last - first)[:len(restarts())] {
		s.Ops[first+step].Restart = restarts()[i]
	}
	return s
}

func restarts() []restart { return []restart{stopped, immediately, beforehand, afterwards} }

// restartAt returns how controllers are restarted around a step.
func restartAt(all []Sequence, step int) restart {
	if step < 0 || step >= len(all[0].Ops) {
		return noRestart
	}
	return all[0].Ops[step].Restart
}

// restartedAlike groups sequences whose restarts are at the same steps.
func restartedAlike(all []Sequence) [][]Sequence {
	when := func(s Sequence) string {
		text := fmt.Sprint(len(s.Ops))
		for _, o := range s.Ops {
			text += fmt.Sprint(" ", int(o.Restart))
		}
		return text
	}
	slices.SortStableFunc(all, func(a, b Sequence) int {
		return cmp.Or(cmp.Compare(len(a.Ops), len(b.Ops)), cmp.Compare(when(a), when(b)))
	})
	var out [][]Sequence
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
	// Ended is when they were stopped last.
	Ended time.Time
}

// StartController starts a controller, and starts it again at each restart.
func (s Side) StartController(start func() (stop func())) {
	s.Life.starts = append(s.Life.starts, start)
	s.Life.stops = append(s.Life.stops, start())
}

func (l *life) end() {
	for _, stop := range l.stops {
		stop()
	}
	l.stops, l.Ended = nil, time.Now()
}

func (l *life) resume() {
	for _, start := range l.starts {
		l.stops = append(l.stops, start())
	}
}

// around plays a step, and restarts the controllers as how says.
func (d *Differential) around(ctx context.Context, how restart, do func() error) error {
	switch how {
	case noRestart:
		return do()
	case WithoutAttach, WithAttach:
		if err := do(); err != nil {
			return err
		}
		if err := d.awake(ctx); err != nil {
			return err
		}
		if _, err := d.rest(ctx); err != nil {
			return err
		}
		return d.both(func(s Side) error { return s.Topic.NeedsAttach(ctx, s, how == WithAttach) })
	}
	begin := time.Now()
	if how == stopped {
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
	for _, s := range d.Sides {
		s.Life.resume()
	}
	d.restarts++
	err := d.awake(ctx)
	d.restarting += time.Since(begin)
	return err
}

func (d *Differential) end() {
	for _, s := range d.Sides {
		s.Life.end()
	}
}

func (d *Differential) silence(how restart) {
	for _, s := range d.Sides {
		s.Storage.keepSilent(how)
	}
}

// AwakeBinding creates a claim and its volume, and deletes them when they are bound.
func AwakeBinding(ctx context.Context, s Side, name string) error {
	if err := s.makePair(ctx, name); err != nil {
		return err
	}
	claims, volumes := s.Client.CoreV1().PersistentVolumeClaims("default"), s.Client.CoreV1().PersistentVolumes()
	var v string
	err := upstream.Poll(ctx, func() (bool, error) {
		c, err := claims.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		v = c.Spec.VolumeName
		return c.Status.Phase == corev1.ClaimBound, nil
	})
	if err != nil {
		return fmt.Errorf("%s does not bind: %w", s.Name, err)
	}
	if err := claims.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		return err
	}
	err = upstream.Poll(ctx, func() (bool, error) {
		v, err := volumes.Get(ctx, v, metav1.GetOptions{})
		if err == nil && v.Status.Phase == corev1.VolumeReleased && v.DeletionTimestamp == nil && s.Storage.Driver == nil {
			err = volumes.Delete(ctx, v.Name, metav1.DeleteOptions{})
		}
		if err != nil && !upstream.Refused(err) {
			return false, err
		}
		return err != nil, nil
	})
	if err != nil {
		return fmt.Errorf("%s does not delete: %w", s.Name, err)
	}
	return nil
}

// makePair creates a claim, and a volume for it unless a provisioner does.
func (s Side) makePair(ctx context.Context, name string) error {
	claim := upstream.ClaimOf(name, name)
	class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: DriverName}
	if s.Storage.Driver == nil {
		class.Provisioner = volume.NoProvisioner
		v := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PersistentVolumeSpec{
			Capacity:    corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
			AccessModes: claim.Spec.AccessModes, StorageClassName: name,
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
		}}
		v.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: DriverName, VolumeHandle: name}
		if _, err := s.Client.CoreV1().PersistentVolumes().Create(ctx, v, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	if _, err := s.Client.StorageV1().StorageClasses().Create(ctx, class, metav1.CreateOptions{}); err != nil {
		return err
	}
	_, err := s.Client.CoreV1().PersistentVolumeClaims("default").Create(ctx, claim, metav1.CreateOptions{})
	return err
}

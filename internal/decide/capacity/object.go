package capacity

import (
	"fmt"

	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/volume"
)

// Answer is a driver's answer about an item, in bytes.
type Answer struct {
	Available int64
	// Largest is the size of the largest possible volume; nil if the driver does not report it.
	Largest *int64
}

// ObjectPlan is the decision about an answer.
type ObjectPlan struct {
	// Write is the object to create or, if it has a resource version, to update; nil if none.
	Write *storagev1.CSIStorageCapacity
	// Refused says that the answer is not valid; the object stays as it is.
	Refused bool
	Because volume.Because
}

// Object decides about the object of an item after an answer. now is that object, or one with its name; nil
// if there is none.
func Object(i Item, now *storagev1.CSIStorageCapacity, a Answer) ObjectPlan {
	driver := i.Class.Provisioner
	if problem := answerProblem(a); problem != "" {
		return refused(volume.Driver(driver), "driver %s does not report the capacity of %s: %s", driver, i, problem)
	}
	write := now.DeepCopy()
	switch {
	case now == nil:
		write = &storagev1.CSIStorageCapacity{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: i.Home.namespace(), Name: i.Name(),
				Labels: map[string]string{volume.LabelDriver: driver, volume.LabelManagedBy: i.Home.managedBy()},
			},
			StorageClassName: i.Class.Name, NodeTopology: &metav1.LabelSelector{MatchLabels: i.Segment},
		}
	case !i.Home.manages(driver, now) || Key(now) != i.Name():
		return refused(volume.User(), "the capacity of %s cannot be published: object %s/%s belongs to another "+
			"program; delete it", i,
			now.Namespace, now.Name)
	}
	write.Capacity, write.MaximumVolumeSize = resource.NewQuantity(a.Available, resource.BinarySI), nil
	if a.Largest != nil {
		write.MaximumVolumeSize = resource.NewQuantity(*a.Largest, resource.BinarySI)
	}
	i.Home.own(write)
	if now != nil && i.Home.owned(now) && same(now.Capacity, write.Capacity) &&
		same(now.MaximumVolumeSize, write.MaximumVolumeSize) {
		return ObjectPlan{Because: volume.Because{
			Reason: volume.ReasonNothingToDo, Message: "object " + now.Name + " reports the capacity of " + i.String(),
		}}
	}
	text := fmt.Sprintf("driver %s has %s of %s", driver, write.Capacity, i)
	if a.Largest != nil {
		text += ", volumes of up to " + write.MaximumVolumeSize.String()
	}
	return ObjectPlan{Write: write, Because: volume.Because{Reason: volume.ReasonCapacityReported, Message: text}}
}

// Failed returns the reason for a driver that did not answer.
func Failed(i Item, text string) volume.Because {
	return refused(volume.Driver(i.Class.Provisioner),
		"driver %s does not report the capacity of %s: %s", i.Class.Provisioner,
		i, text).Because
}

func refused(next volume.Actor, format string, args ...any) ObjectPlan {
	return ObjectPlan{Refused: true, Because: volume.Sayf(volume.ReasonCapacityUnknown, next, format, args...)}
}

func answerProblem(a Answer) string {
	switch {
	case a.Available < 0:
		return fmt.Sprintf("it has %d bytes", a.Available)
	case a.Largest != nil && *a.Largest < 0:
		return fmt.Sprintf("its largest volume has %d bytes", *a.Largest)
	}
	return ""
}

func same(a, b *resource.Quantity) bool {
	return (a == nil) == (b == nil) && (a == nil || a.Cmp(*b) == 0)
}

package provisioner

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/ptr"
)

// Meter counts attempts.
type Meter interface {
	// Provisioned counts an attempt to make a volume of a class. source is the kind of the object whose data it gets.
	Provisioned(class, source string, took time.Duration, err error)
	// Deleted counts an attempt to delete a volume of a class.
	Deleted(class string, took time.Duration, err error)
	// Intents is given a function that counts the intents which are not resolved.
	Intents(count func() int)
}

// measured counts an attempt to make the volume of a claim, with the labels of upstream. The intent of a claim that is
// gone has no class any more.
func (p *provisioner) measured(claim *corev1.PersistentVolumeClaim, attempt func() error) error {
	begin := time.Now()
	err := attempt()
	if p.Meter == nil || claim == nil {
		return err
	}
	source := ""
	if claim.Spec.DataSource != nil {
		source = claim.Spec.DataSource.Kind
	}
	p.Meter.Provisioned(ptr.Deref(claim.Spec.StorageClassName, ""), source, time.Since(begin), err)
	return err
}

// measuredDelete counts an attempt to delete a volume. After a conflict there was none: the volume is looked at again.
func (p *provisioner) measuredDelete(v *corev1.PersistentVolume, attempt func() error) error {
	begin := time.Now()
	err := attempt()
	if p.Meter != nil && !apierrors.IsConflict(err) {
		p.Meter.Deleted(v.Spec.StorageClassName, time.Since(begin), err)
	}
	return err
}

package drivers

import (
	"errors"
	"fmt"
	"regexp"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// registration is the life of a driver whose storage this host does not have: it registers, receives a CreateVolume
// call, `why` reports its answer, and everything is removed again.
func (l *foreignLife) registration() []foreignStep {
	return []foreignStep{
		{"added", l.added},
		{"registered", func() error { return l.eventually(l.registered) }},
		{"asked", func() error { return errors.Join(l.createObjects(), l.createPod("one")) }},
		{"refusal told", func() error { return l.eventually(l.refusalTold) }},
		{"driver killed", l.killDriver},
		{"volplaned killed", l.killPlane},
		{"registered again", func() error { return errors.Join(l.eventually(l.registered), l.eventually(l.refusalTold)) }},
		{"deleted", func() error { return errors.Join(l.unmount("one"), l.deleteObjects()) }},
		{"removed", l.remove},
		{"nothing left", func() error { return l.eventually(l.nothingLeft) }},
	}
}

// registered requires the driver in a CSINode, and its CSIDriver.
func (l *foreignLife) registered() error {
	if _, err := l.client.StorageV1().CSIDrivers().Get(l.ctx, l.row.driver, metav1.GetOptions{}); err != nil {
		return err
	}
	nodes, err := l.client.StorageV1().CSINodes().List(l.ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, n := range nodes.Items {
		for _, d := range n.Spec.Drivers {
			if d.Name == l.row.driver && d.NodeID != "" {
				return nil
			}
		}
	}
	return fmt.Errorf("no CSINode has driver %s", l.row.driver)
}

// refusalTold requires the driver's own words in the explanation of the claim.
func (l *foreignLife) refusalTold() error {
	// The exit code says that the claim waits, and is not an error.
	out, _ := l.output("volplane", "why", "pvc/data", "-o", "json")
	if words := regexp.MustCompile(l.refuses); !words.Match(out) {
		return fmt.Errorf("why does not show %s:\n%s", words, out)
	}
	return nil
}

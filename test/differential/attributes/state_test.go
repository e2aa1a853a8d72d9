package attributes

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/test/internal/differential"
)

// modifyStates returns the state of each sequence about changes of attributes.
func modifyStates(ctx context.Context, s side) (state, error) {
	claims, err := s.Client.CoreV1().PersistentVolumeClaims("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	volumes, err := s.Client.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	classes, err := s.Client.StorageV1().VolumeAttributesClasses().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	out := state{}
	for i := range claims.Items {
		c := &claims.Items[i]
		line := modifiableLine(s, c)
		if s.Name != "volplane" {
			line = repeating(line)
		}
		out[c.Namespace] = append(out[c.Namespace], line)
	}
	for i := range volumes.Items {
		v := &volumes.Items[i]
		space := s.SpaceOf(v.Name)
		out[space] = append(out[space], fmt.Sprintf("volume %s attributes=%s size=%s annotations=%v finalizers=%v",
			s.Bare(v.Name), s.Bare(ptr.Deref(v.Spec.VolumeAttributesClassName, "none")), v.Spec.Capacity.Storage(),
			differential.Annotations(v.Annotations), differential.Sorted(v.Finalizers)))
	}
	for i := range classes.Items {
		c := &classes.Items[i]
		space := s.SpaceOf(c.Name)
		out[space] = append(out[space], fmt.Sprintf("attributes %s of %s %v finalizers=%v", s.Bare(c.Name), c.DriverName,
			c.Parameters, differential.Sorted(c.Finalizers)))
	}
	for id, n := range s.Storage.ModifyCalls() {
		space := s.SpaceOf(id)
		out[space] = append(out[space], fmt.Sprintf(differential.Aside+"called %s %d times", id, n))
	}
	if err := eventLines(ctx, s, claims.Items, out); err != nil {
		return nil, err
	}
	if err := s.Stored(out); err != nil {
		return nil, err
	}
	for _, lines := range out {
		slices.Sort(lines)
	}
	return out, nil
}

// modifiableLine describes a claim and its status about the change of its attributes.
func modifiableLine(s side, c *corev1.PersistentVolumeClaim) string {
	change := "none"
	if m := c.Status.ModifyVolumeStatus; m != nil {
		change = fmt.Sprintf("%s:%s", m.Status, s.Bare(m.TargetVolumeAttributesClassName))
	}
	var conditions []string
	for _, k := range c.Status.Conditions {
		if strings.Contains(string(k.Type), "Modify") {
			conditions = append(conditions, fmt.Sprintf("%s=%s %s: %s", k.Type, k.Status, k.Reason,
				strings.ReplaceAll(k.Message, c.Namespace+"-", "")))
		}
	}
	return fmt.Sprintf("claim %s wants=%s has=%s change=%s requests=%s capacity=%s finalizers=%v going=%v conditions=%q",
		c.Name, s.Bare(ptr.Deref(c.Spec.VolumeAttributesClassName, "none")),
		s.Bare(ptr.Deref(c.Status.CurrentVolumeAttributesClassName, "none")), change, c.Spec.Resources.Requests.Storage(),
		c.Status.Capacity.Storage(), differential.Sorted(c.Finalizers), c.DeletionTimestamp != nil,
		differential.Sorted(conditions))
}

// repeating returns the line of a claim in the state between two repetitions of a failed call: before each, Kubernetes
// writes that the change is in progress.
func repeating(line string) string {
	failed := regexp.MustCompile(`"ModifyVolumeError=True ([^:]+):`).FindStringSubmatch(line)
	if failed == nil || !strings.Contains(line, `\" is in progress."`) {
		return line
	}
	if failed[1] == codes.InvalidArgument.String() {
		line = strings.Replace(line, " change=InProgress:", " change=Infeasible:", 1)
	}
	return strings.Replace(line, `\" is in progress."`, `\" failed. Waiting for retry."`, 1)
}

// eventLines adds a line for the events of each claim. An event may be on its way when a program is killed, and
// is lost then: claims that have lived through that have no line.
func eventLines(ctx context.Context, s side, claims []corev1.PersistentVolumeClaim, out state) error {
	all, err := s.Client.CoreV1().Events("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	reasons := map[types.UID][]string{}
	for i := range all.Items {
		e := &all.Items[i]
		of := e.InvolvedObject.UID
		if strings.HasPrefix(e.Reason, "VolumeModify") && !slices.Contains(reasons[of], e.Reason) {
			reasons[of] = append(reasons[of], e.Reason)
		}
	}
	for i := range claims {
		c := &claims[i]
		for _, reason := range reasons[c.UID] {
			if c.CreationTimestamp.Add(-time.Second).After(s.Life.Ended) {
				out[c.Namespace] = append(out[c.Namespace], fmt.Sprintf(differential.Aside+"told of %s: %s", c.Name, reason))
			}
		}
	}
	return nil
}

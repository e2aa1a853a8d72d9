package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// quiet is how long nothing must have changed at both sides; Kubernetes' binder
// looks at everything twice in that time.
const quiet = 3 * syncPeriod

// rest waits until a side is at rest.
func (s side) rest(ctx context.Context) error {
	again := time.NewTicker(syncPeriod / 4)
	defer again.Stop()
	before, since := "", time.Now()
	for {
		now, err := s.versions(ctx)
		switch {
		case err != nil:
			return err
		case now != before:
			before, since = now, time.Now()
		case time.Since(since) >= quiet:
			return nil
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return fmt.Errorf("%s does not come to rest: %w", s.name, ctx.Err())
		}
	}
}

// versions returns a text that changes with each claim and volume.
func (s side) versions(ctx context.Context) (string, error) {
	var b strings.Builder
	for _, resource := range []string{"persistentvolumes", "persistentvolumeclaims"} {
		list := &metav1.PartialObjectMetadataList{}
		raw, err := s.client.CoreV1().RESTClient().Get().Resource(resource).
			SetHeader("Accept", "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1").Do(ctx).Raw()
		if err == nil {
			err = json.Unmarshal(raw, list)
		}
		if err != nil {
			return "", err
		}
		for i := range list.Items {
			b.WriteString(list.Items[i].Namespace + "/" + list.Items[i].Name + "=" + list.Items[i].ResourceVersion + "\n")
		}
	}
	return b.String(), nil
}

// state is what is compared: one line for each object of a sequence, by
// namespace.
type state map[string][]string

// states returns the state of each sequence.
func (s side) states(ctx context.Context) (state, error) {
	claims, err := s.client.CoreV1().PersistentVolumeClaims("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	volumes, err := s.client.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	out, names := state{}, map[types.UID]string{"": "none"}
	for i := range claims.Items {
		c := &claims.Items[i]
		names[c.UID] = c.Name
	}
	for i := range claims.Items {
		c := &claims.Items[i]
		out[c.Namespace] = append(out[c.Namespace], claimLine(c))
	}
	for i := range volumes.Items {
		v := &volumes.Items[i]
		space, name, _ := strings.Cut(v.Name, "-v")
		out[space] = append(out[space], volumeLine(v, "v"+name, names))
	}
	for _, lines := range out {
		slices.Sort(lines)
	}
	return out, nil
}

func claimLine(c *corev1.PersistentVolumeClaim) string {
	return fmt.Sprintf("claim %s %s volume=%q capacity=%s modes=%v annotations=%v finalizers=%v going=%v",
		c.Name, c.Status.Phase, c.Spec.VolumeName, c.Status.Capacity.Storage(), c.Status.AccessModes, annotations(c.Annotations), c.Finalizers, c.DeletionTimestamp != nil)
}

func volumeLine(v *corev1.PersistentVolume, name string, claims map[types.UID]string) string {
	ref := "none"
	if r := v.Spec.ClaimRef; r != nil {
		uid, known := claims[r.UID]
		if !known {
			uid = "gone"
		}
		ref = r.Name + " uid of " + uid
	}
	return fmt.Sprintf("volume %s %s for %s annotations=%v finalizers=%v going=%v", name, v.Status.Phase, ref, annotations(v.Annotations), v.Finalizers, v.DeletionTimestamp != nil)
}

func annotations(all map[string]string) []string {
	var out []string
	for _, k := range slices.Sorted(maps.Keys(all)) {
		out = append(out, strings.TrimPrefix(k, "pv.kubernetes.io/")+"="+all[k])
	}
	return out
}

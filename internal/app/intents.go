package app

import (
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	"volplane.dev/volplane/internal/controller/provisioner"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/process/options"
	"volplane.dev/volplane/internal/sidecar/manifest"
	"volplane.dev/volplane/internal/volume"
)

// driverIntents returns the place of the intents of a driver's own provisioner; with a node, that of the provisioner
// of this node. Each has another place, so that a role can be restricted to it. They are in Leases, because upstream's
// rights for a provisioner allow to write nothing else in its namespace.
func driverIntents(driver, node, namespace string) provisioner.Logs {
	// A place is a label, of at most 63 characters; with the hash, no two nodes have the same.
	const most, hashed = 29, 8
	name := manifest.Base(strings.ToLower(driver))
	if node != "" {
		sum := sha256.Sum256([]byte(driver + "/" + node))
		name = fmt.Sprintf("%s-%x", strings.TrimRight(name[:min(len(name), most)], "-"), sum[:hashed])
	}
	return provisioner.Logs{Own: kube.LogPlace{
		Namespace: namespace, Name: provisioner.Standalone().Own.Name + "-" + name, InLeases: true,
	}}
}

// intentKeeper finds out whether a provisioner beside a driver may keep its intents where they survive its end.
type intentKeeper struct {
	client kubernetes.Interface
	place  kube.LogPlace
}

// rightsPatience is how long rights are waited for, which may be given a little later than the program is started.
const rightsPatience = 10 * time.Second

// keepIntents calls run with the place of the intents: in Leases, or in memory if the process may not write these. In
// memory they last until the process ends, as with upstream's provisioner: after a crash, the name of a claim's volume
// is the same, so that the driver answers with the volume that it has made; but if the claim is deleted before, nobody
// asks again, and the volume is left behind.
func keepIntents(
	ctx context.Context, o options.ControllersOptions, logs provisioner.Logs,
	run func(context.Context, provisioner.Logs) error,
) error {
	if !slices.Contains(o.Roles, provisioner.Declaration().Name) {
		return run(ctx, logs)
	}
	client, err := rightsClient(o.Config, kube.Read("coordination.k8s.io", "leases")...)
	if err != nil {
		return err
	}
	k := intentKeeper{client: client, place: logs.Own}
	missing := k.await(ctx)
	if missing == "" {
		return run(ctx, logs)
	}
	if err := k.checkNoneKept(ctx, missing); err != nil {
		return err
	}
	o.Log.Warn("what is begun is kept in memory only, until the next start, because this process may not write Leases: a "+
		"volume is left behind at the driver if its claim is deleted between a crash in the middle of its creation and the "+
		"next start", "missing", missing)
	logs.Own.InMemory = true
	return run(ctx, logs)
}

// checkNoneKept fails if an earlier start has kept intents that this one would neither see nor be able to resolve: a
// later start would find them open, and undo the creation of a volume that is wanted. Without the right to read them,
// there are none.
func (k intentKeeper) checkNoneKept(ctx context.Context, missing string) error {
	kept, err := k.client.CoordinationV1().Leases(k.place.Namespace).List(ctx,
		metav1.ListOptions{LabelSelector: volume.LabelIntents + "=" + k.place.Name})
	switch {
	case apierrors.IsForbidden(err):
		return nil
	case err != nil:
		return fmt.Errorf("look for intents of an earlier start: %w", err)
	case len(kept.Items) > 0:
		return fmt.Errorf("intents of an earlier start are in Lease %s/%s, and this process may not resolve them: give it "+
			"the right to %s", k.place.Namespace, kept.Items[0].Name, missing)
	}
	return nil
}

// await returns a right that is missing, if it is not given in time, or "".
func (k intentKeeper) await(ctx context.Context) (missing string) {
	_ = wait.PollUntilContextTimeout(ctx, rightsPatience/10, rightsPatience, true, func(context.Context) (bool, error) {
		missing = k.lacks(ctx)
		return missing == "", nil
	})
	return missing
}

// lacks returns a right on the log's objects that the process does not have, or "". A server that does not say so is
// taken to give it: then the log finds out.
func (k intentKeeper) lacks(ctx context.Context) string {
	for _, a := range k.place.Access() {
		for _, verb := range a.Verbs {
			of := authorizationv1.ResourceAttributes{
				Namespace: a.Namespace, Group: a.Group, Resource: a.Resource, Verb: verb,
			}
			if len(a.Names) > 0 {
				of.Name = a.Names[0]
			}
			review, err := reviewAccess(ctx, k.client, of)
			if err == nil && !review.Allowed && review.EvaluationError == "" {
				return verb + " " + a.Resource + " in namespace " + a.Namespace
			}
		}
	}
	return ""
}

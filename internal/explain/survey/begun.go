package survey

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/decide/provision"
	"volplane.dev/volplane/internal/explain/chain"
	"volplane.dev/volplane/internal/explain/state"
	"volplane.dev/volplane/internal/explain/why"
	"volplane.dev/volplane/internal/volume"
)

// slow is the age from which something begun is worth telling.
const slow = 10 * time.Second

// Unsettled returns the intents that are not recent: a driver was called to create a
// volume some time ago, there is no PersistentVolume yet, and the driver may have created
// it.
func Unsettled(w why.Walk) []*provision.Intent {
	var out []*provision.Intent
	for _, in := range w.Begun {
		v := cluster.Find(w.View.Volumes, in.Name)
		if w.Now.Sub(in.Begun.Time) >= slow && (v == nil || !provision.Owns(in.Claim.UID, v)) {
			out = append(out, in)
		}
	}
	return out
}

// abandoned explains an intent that no claim waits for; false if a claim does, whose own
// chain reports it.
func abandoned(w why.Walk, in *provision.Intent) (chain.Chain, bool) {
	claim := cluster.Find(w.View.Claims, in.Claim.Namespace+"/"+in.Claim.Name)
	if claim != nil && claim.UID == in.Claim.UID && claim.DeletionTimestamp == nil && claim.Spec.VolumeName == "" {
		return chain.Chain{}, false
	}
	at := ""
	if !in.Begun.IsZero() {
		at = " at " + chain.Moment(in.Begun.Time)
	}
	becomes := "deleted"
	if in.Reclaim != corev1.PersistentVolumeReclaimDelete {
		becomes = "made a PersistentVolume, for it is to be retained"
	}
	message := fmt.Sprintf("driver %s was asked for volume %s of claim %s/%s%s and may have made it, and nobody waits "+
		"for it any more; it is asked until it tells, and what is there is %s",
		in.Driver, in.Name, in.Claim.Namespace, in.Claim.Name, at, becomes)
	l := chain.New("intent/"+in.Name, chain.Waiting, volume.ReasonProvisioning, message, volume.Driver(in.Driver))
	if e := w.Warnings.About(in.Claim.UID, ""); e != nil {
		b := state.Told(e, volume.Driver(in.Driver))
		b.Message = message + ": " + b.Message
		l = chain.Broken(l.Subject, b)
	}
	return chain.Chain{Subject: l.Subject, Links: []chain.Link{l}}, true
}

package volumes

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"strconv"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

// Keys of a Pod's attributes in the volume context.
const (
	infoPrefix = "csi.storage.k8s.io/"
	tokensKey  = infoPrefix + "serviceAccount.tokens"
)

// volumeContext returns the attributes of a Pod's volume, with those of the Pod if the driver asks for them.
func (d *applier) volumeContext(c consumer) map[string]string {
	out, pod := map[string]string{}, c.pod
	maps.Copy(out, c.pv.Spec.CSI.VolumeAttributes)
	if info := d.Node.Spec(d.f.Driver).PodInfoOnMount; info == nil || !*info || pod == nil {
		return out
	}
	out[infoPrefix+"pod.name"], out[infoPrefix+"pod.namespace"], out[infoPrefix+"pod.uid"] = pod.Name, pod.Namespace,
		string(pod.UID)
	out[infoPrefix+"serviceAccount.name"], out[infoPrefix+"ephemeral"] = pod.Spec.ServiceAccountName,
		strconv.FormatBool(d.f.Ephemeral)
	return out
}

// addTokens adds the tokens of the Pod's service account that the driver asks for, by audience, to the
// request's volume context or secrets. Tokens are never written to the journal or a log.
func (d *applier) addTokens(ctx context.Context, pod *corev1.Pod, request *csipb.NodePublishVolumeRequest) error {
	spec := d.Node.Spec(d.f.Driver)
	if len(spec.TokenRequests) == 0 || pod == nil {
		return nil
	}
	tokens := map[string]authenticationv1.TokenRequestStatus{}
	for _, r := range spec.TokenRequests {
		t, err := d.tokens.get(ctx, d.Client, pod, r)
		if err != nil {
			return err
		}
		tokens[r.Audience] = t
	}
	text, err := json.Marshal(tokens)
	if err != nil {
		return fmt.Errorf("tokens of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	if ptr.Deref(spec.ServiceAccountTokenInSecrets, false) {
		if request.Secrets == nil {
			request.Secrets = map[string]string{}
		}
		request.Secrets[tokensKey] = string(text)
		return nil
	}
	request.VolumeContext[tokensKey] = string(text)
	return nil
}

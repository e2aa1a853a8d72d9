package provisioner

import (
	"context"
	"slices"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/decide/provision"
	"volplane.dev/volplane/internal/volume"
)

// maxGrants is how many ReferenceGrants are read at a time: anyone may create any number of them in a namespace.
const maxGrants = 500

// granted says whether the claims of a namespace may have the data of a source: they are in the same namespace, or a
// ReferenceGrant of the other one says so. It reads from the API server, because a cache would still have a grant that
// was just withdrawn.
func (p *provisioner) granted(ctx context.Context, namespace string, from cluster.DataSource) (bool, error) {
	if from.Namespace == "" || from.Namespace == namespace {
		return true, nil
	}
	if !p.Choices.OtherNamespaces {
		return false, nil
	}
	grants := func(g cluster.ReferenceGrant) bool { return provision.Grants(&g, namespace, from) }
	for next := ""; ; {
		list := &cluster.ReferenceGrantList{}
		err := p.custom(ctx, p.Client.Discovery().RESTClient().Get().
			AbsPath("apis", volume.GroupGateway, volume.GatewayVersion).Namespace(from.Namespace).
			Resource(volume.ResourceGrants).Param("limit", strconv.Itoa(maxGrants)).Param("continue", next), list)
		if apierrors.IsNotFound(err) {
			return false, nil // the custom resource is not installed
		}
		if err != nil || slices.ContainsFunc(list.Items, grants) {
			return err == nil, err
		}
		if next = list.Continue; next == "" {
			return false, nil
		}
	}
}

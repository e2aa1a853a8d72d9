package shell

import (
	"context"
	"fmt"
	"io"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/volume"
)

// PrintRestored says that nothing is removed because the API was restored from a
// backup. It prints nothing for other API servers.
func PrintRestored(ctx context.Context, out io.Writer, client kubernetes.Interface) {
	o, err := client.CoreV1().ConfigMaps(volume.NamespaceSystem).Get(ctx, volume.ConfigRestored, metav1.GetOptions{})
	if err == nil {
		fmt.Fprintf(out, "\nNothing is unmounted, detached or deleted until 'volplane restore --accept': %s\n",
			kube.Restored(o))
	}
}

// Answer returns one line about a Pod and its claims, or "" if that cannot be
// determined.
func Answer(ctx context.Context, client kubernetes.Interface, ns, pod string) string {
	return Facts(client).Headline(ctx, "pod", ns, pod)
}

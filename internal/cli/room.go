package cli

import (
	"context"
	"fmt"
	"io"

	"k8s.io/client-go/kubernetes"

	"volplane.dev/volplane/internal/decide/room"
	"volplane.dev/volplane/internal/gather"
)

func printRoom(ctx context.Context, out io.Writer, client kubernetes.Interface) {
	r, ok := gather.Room(ctx, client)
	if !ok {
		return
	}
	fmt.Fprintf(out, "database     %s of %s used, file of %s\ndisk         %s of %s free, %s in reserve\n",
		room.Text(r.Used), room.Text(r.Limit), room.Text(r.Size),
		room.Text(r.Free), room.Text(r.Total), room.Text(r.Reserve))
	if r.Refuses {
		fmt.Fprintf(out, "\n%s: %s\n", r.Reason, r.Message)
	}
}

package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"

	"k8s.io/client-go/kubernetes"

	"volplane.dev/volplane/internal/decide/room"
)

// readRoom reads how much space the database and the disk of a standalone control
// plane have. It returns false if the API server does not tell it or the user may
// not read it.
func readRoom(ctx context.Context, client kubernetes.Interface) (room.Report, bool) {
	var r room.Report
	rest := client.Discovery().RESTClient()
	data, err := rest.Get().AbsPath(room.Path).Do(ctx).Raw()
	return r, err == nil && json.Unmarshal(data, &r) == nil && r.Total > 0
}

func printRoom(ctx context.Context, out io.Writer, client kubernetes.Interface) {
	r, ok := readRoom(ctx, client)
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

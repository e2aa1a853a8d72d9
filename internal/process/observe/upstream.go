package observe

import "github.com/prometheus/client_golang/prometheus"

// Names of what upstream's sidecars serve, too.
const (
	nameCalls          = "csi_sidecar_operations_seconds"
	nameLeader         = "leader_election_master_status"
	nameSlowpath       = "leader_election_slowpath_total"
	nameDepth          = "workqueue_depth"
	nameAdds           = "workqueue_adds_total"
	nameQueued         = "workqueue_queue_duration_seconds"
	nameWork           = "workqueue_work_duration_seconds"
	nameUnfinished     = "workqueue_unfinished_work_seconds"
	nameLongest        = "workqueue_longest_running_processor_seconds"
	nameRetries        = "workqueue_retries_total"
	nameRequests       = "rest_client_requests_total"
	nameRequestTime    = "rest_client_request_duration_seconds"
	nameProvision      = "controller_persistentvolumeclaim_provision_total"
	nameProvisionFails = "controller_persistentvolumeclaim_provision_failed_total"
	nameProvisionTime  = "controller_persistentvolumeclaim_provision_duration_seconds"
	nameDelete         = "controller_persistentvolume_delete_total"
	nameDeleteFails    = "controller_persistentvolume_delete_failed_total"
	nameDeleteTime     = "controller_persistentvolume_delete_duration_seconds"
	nameSnapshots      = "snapshot_controller_operation_total_seconds"
	nameSnapshotsOpen  = "snapshot_controller_operations_in_flight"
	nameStreams        = "snapshot_metadata_controller_operations_seconds"
)

// Gauges of CSIStorageCapacity objects.
const (
	CapacitiesGoal     = "csistoragecapacities_desired_goal"
	CapacitiesCurrent  = "csistoragecapacities_desired_current"
	CapacitiesObsolete = "csistoragecapacities_obsolete"
)

func upstreamFamilies() []Family {
	return append(clientFamilies(), provisioningFamilies()...)
}

// clientFamilies are those of csi-lib-utils and of client-go.
func clientFamilies() []Family {
	name, queued := []string{"name"}, prometheus.ExponentialBuckets(10e-9, 10, 10)
	call, times := []string{"driver_name", "method_name", "grpc_status_code"}, []float64{
		.1, .25, .5, 1, 2.5, 5, 10, 15, 25, 50, 120, 300, 600,
	}
	const help = "[ALPHA] Container Storage Interface operation duration with gRPC error code status total"
	return []Family{
		{nameCalls, histogram, call, help, times, FromAll},
		{nameStreams, histogram, call, help, times, FromMetadata},
		{
			nameLeader, gauge, name, "[ALPHA] Gauge of if the reporting system is master of the relevant lease, 0 indicates " +
				"backup, 1 indicates master. 'name' is the string used to identify the lease. Please make sure to group by name.",
			nil, FromControllers,
		},
		{
			nameSlowpath, counter, name, "[ALPHA] Total number of slow path exercised in renewing leader leases. 'name' is " +
				"the string used to identify the lease. Please make sure to group by name.",
			nil, FromControllers,
		},
		{nameDepth, gauge, name, "[BETA] Current depth of workqueue", nil, FromBoth},
		{nameAdds, counter, name, "[BETA] Total number of adds handled by workqueue", nil, FromBoth},
		{
			nameQueued, histogram, name, "[BETA] How long in seconds an item stays in workqueue before being requested.",
			queued, FromBoth,
		},
		{
			nameWork, histogram, name, "[BETA] How long in seconds processing an item from workqueue takes.", queued, FromBoth,
		},
		{
			nameUnfinished, gauge, name, "[BETA] How many seconds of work has done that is in progress and hasn't been " +
				"observed by work_duration. Large values indicate stuck threads. One can deduce the number of stuck threads by " +
				"observing the rate at which this increases.", nil, FromBoth,
		},
		{
			nameLongest, gauge, name, "[BETA] How many seconds has the longest running processor for workqueue been running.",
			nil, FromBoth,
		},
		{nameRetries, counter, name, "[BETA] Total number of retries handled by workqueue", nil, FromBoth},
		{
			nameRequests, counter,
			[]string{"code", "method", "host"},
			"[ALPHA] Number of HTTP requests, partitioned by status code, method, and host.", nil, FromBoth,
		},
		{
			nameRequestTime, histogram,
			[]string{"verb", "host"},
			"[ALPHA] Request latency in seconds. Broken down by verb, and host.",
			[]float64{0.005, 0.025, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60},
			FromBoth,
		},
	}
}

// provisioningFamilies are those of csi-provisioner and snapshot-controller.
func provisioningFamilies() []Family {
	class, source := []string{"class"}, []string{"class", "source"}
	return []Family{
		{
			nameProvision, counter, source, "Total number of persistent volumes provisioned successfully. " +
				"Broken down by storage class name and source of the claim.", nil, FromBoth,
		},
		{
			nameProvisionFails, counter, source, "Total number of persistent volume provision failed attempts. " +
				"Broken down by storage class name and source of the claim.", nil, FromBoth,
		},
		{
			nameProvisionTime, histogram, source, "Latency in seconds to provision persistent volumes. Failed provisioning " +
				"attempts are ignored. Broken down by storage class name and source of the claim.", prometheus.DefBuckets,
			FromBoth,
		},
		{
			nameDelete, counter, class, "Total number of persistent volumes deleted successfully. " +
				"Broken down by storage class name.", nil, FromBoth,
		},
		{
			nameDeleteFails, counter, class, "Total number of persistent volume delete failed attempts. " +
				"Broken down by storage class name.", nil, FromBoth,
		},
		{
			nameDeleteTime, histogram, class, "Latency in seconds to delete persistent volumes. Failed deletion attempts " +
				"are ignored. Broken down by storage class name.", prometheus.DefBuckets, FromBoth,
		},
		{
			CapacitiesGoal, gauge, nil, "[ALPHA] Number of CSIStorageCapacity objects that are supposed to be managed " +
				"automatically.", nil, FromBoth,
		},
		{
			CapacitiesCurrent, gauge, nil, "[ALPHA] Number of CSIStorageCapacity objects that exist and are supposed to " +
				"be managed automatically.", nil, FromBoth,
		},
		{
			CapacitiesObsolete, gauge, nil, "[ALPHA] Number of CSIStorageCapacity objects that exist and will be deleted " +
				"automatically. Objects that exist and may need an update are not considered obsolete and therefore not " +
				"included in this value.", nil, FromBoth,
		},
		{
			nameSnapshots, histogram,
			[]string{"driver_name", "operation_name", "snapshot_type", "operation_status"},
			"[ALPHA] Total number of seconds spent by the controller on an operation",
			[]float64{0.1, 0.25, 0.5, 1, 2.5, 5, 10, 15, 30, 60, 120, 300, 600},
			FromBoth,
		},
		{nameSnapshotsOpen, gauge, nil, "[ALPHA] Total number of operations in flight", nil, FromBoth},
	}
}

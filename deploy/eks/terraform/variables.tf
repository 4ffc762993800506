variable "name" {
  type        = string
  description = "Name of the cluster; every resource carries it"
  validation {
    # 38: "KarpenterControllerPolicy-" and the like still fit into the 64 characters of an IAM role's name.
    condition     = can(regex("^[a-z][a-z0-9-]{0,36}[a-z0-9]$", var.name))
    error_message = "The name must be 2 to 38 lower-case letters, digits and hyphens, beginning with a letter."
  }
}

variable "region" {
  type = string
}

variable "zone" {
  type        = string
  default     = ""
  description = "Zone of the training nodes, the file system and the NAT gateway; empty: the region's first"
}

variable "vpc_cidr" {
  type    = string
  default = "10.42.0.0/16"
}

variable "storage" {
  type        = string
  default     = "fsx"
  description = "fsx: Lustre with an S3 bucket behind it; efs: elastic NFS; s3: only a bucket, read-only in the pods"
  validation {
    condition     = contains(["fsx", "efs", "s3"], var.storage)
    error_message = "The storage must be fsx, efs or s3."
  }
}

variable "fsx_capacity_gib" {
  type    = number
  default = 1200
  validation {
    condition     = var.fsx_capacity_gib == 1200 || (var.fsx_capacity_gib > 0 && var.fsx_capacity_gib % 2400 == 0)
    error_message = "FSx for Lustre comes in 1200 GiB or multiples of 2400 GiB."
  }
}

variable "fsx_throughput" {
  type        = number
  default     = 125
  description = "MB/s per TiB of capacity"
  validation {
    condition     = contains([125, 250, 500, 1000], var.fsx_throughput)
    error_message = "PERSISTENT_2 has 125, 250, 500 or 1000 MB/s per TiB."
  }
}

variable "fsx_efa" {
  type        = bool
  default     = false
  description = "Nodes with EFA may reach Lustre by it: 1000 MB/s per TiB, and 4800 GiB or a multiple"
}

variable "bucket" {
  type        = string
  default     = ""
  description = "An existing bucket for the data; empty: one is created, and deleted with its content by down.sh"
}

variable "logs" {
  type        = bool
  default     = false
  description = "A bucket for the logs of jobs, and a role with which Loki writes there"
}

variable "efa" {
  type        = bool
  default     = false
  description = "A security group open to itself in both directions, which EFA needs"
}
